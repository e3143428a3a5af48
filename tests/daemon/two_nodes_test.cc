// Two real kvraild processes and agents in this one: every medium over every transport and worker
// mode, then faults: a peer that dies, stops, or comes back as another.
#include <doctest/doctest.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "codec/lowrank.h"
#include "tests/daemon/two_nodes.h"
#include "tests/unit/codec/bases.h"

namespace kvrail::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A profile with a basis of lowrank for layout(), as kvrail-calibrate writes them; the configuration that names it.
std::string calibrate(const TempDir& dir) {
  codec::BasisShape shape;
  shape.layers = layout().layers;
  shape.kv_heads = layout().kv_heads;
  shape.head_dim = shape.components = layout().head_dim;
  shape.heads_per_segment = shape.groups = 1;
  shape.rope.rotary_dims = layout().head_dim;
  const std::vector<std::byte> file = codec::basis_file(codec_test::random_basis(shape, 1));
  const auto basis = codec::Basis::parse(file);
  REQUIRE(basis.ok());
  (void)dir.write("test.basis", {reinterpret_cast<const char*>(file.data()), file.size()});
  std::array<char, 33> id{};
  std::snprintf(id.data(), id.size(), "%016llx%016llx", static_cast<unsigned long long>(basis->id().high),
                static_cast<unsigned long long>(basis->id().low));
  const std::string profile = dir.write(
      "test.profile.toml", "version = 1\nmodel = \"" + std::string(32, '0') + "\"\n[lowrank]\nbasis = \"test.basis\"\nid = \"" +
                               id.data() + "\"\ntheta = " + std::to_string(codec::theta_for_rate(*basis, 3.0, 16)) +
                               "\n[[depth]]\nup_to_tokens = 1000\n[depth.media.lowrank]\nepsilon = 0.5\nkappa = 0.1\nextra_tokens = 1.0\n");
  return "[codec]\nprofile = \"" + profile + "\"\n";
}

TEST_CASE("two nodes / every medium arrives right, growth moves only what is new, over every link") {
  const TempDir dir;
  const std::string calibrated = calibrate(dir);
  for (const Link& link : kLinks) {
    CAPTURE(std::string(link.name));
    Pair pair(link, calibrated);
    Agent planner = pair.attach("a", "planner");
    Agent coder = pair.attach("b", "coder");
    for (const Medium medium : {Medium::full, Medium::int8, Medium::lowrank, Medium::tokens, Medium::automatic}) {
      CAPTURE(medium_name(medium));
      Growing doc(planner, 10 + static_cast<std::uint64_t>(medium), 2000);
      std::uint64_t first_bytes = 0;
      for (const std::uint32_t length : {1000U, 1001U, 1024U, 1900U}) {
        CAPTURE(length);
        const Outcome sent = send(planner, doc.commit(length), "coder", medium);
        REQUIRE_MESSAGE(sent.status.ok(), name(sent.status.code));
        auto got = coder.receive(kSoon);
        REQUIRE_MESSAGE(got.ok(), (got.ok() ? "" : got.error().message));
        CHECK(got->owner() == "planner");
        CHECK(std::vector<TokenId>(got->tokens().begin(), got->tokens().end()) ==
              std::vector<TokenId>(doc.all.begin(), doc.all.begin() + length));
        if (medium == Medium::tokens) {
          CHECK(got->blocks().empty());
          continue;
        }
        if (medium == Medium::automatic && got->medium() == Medium::tokens) continue;
        CHECK(got->blocks().size() == (length + 15) / 16);
        if (medium == Medium::full) {
          CHECK(got->medium() == Medium::full);
          CHECK(differences(*got, doc.seed) == 0);
          CHECK(got->epsilon() == 0.0);
          if (length == 1000) first_bytes = sent.bytes;
          if (length == 1001) CHECK(sent.bytes < first_bytes / 50);
        }
        if (medium == Medium::int8) CHECK(got->epsilon() > 0.0);
        if (medium == Medium::lowrank) {
          CHECK(got->medium() == Medium::lowrank);
          CHECK(got->epsilon() == doctest::Approx(0.5 * 0.1));  // times the profile's κ  // these rows have nothing to do with this basis
          CHECK(differences(*got, doc.seed) > 0);
          if (length == 1000) CHECK(sent.bytes * 4 < 1000 * layout().token_bytes());
        }
      }
    }
  }
}

// Rows go through a code on their way, a lossless one, so that every bit can be checked.
TEST_CASE("two nodes / topk, window and an extract arrive right, over every link") {
  for (const Link& link : kLinks) {
    CAPTURE(std::string(link.name));
    Pair pair(link);
    Agent planner = pair.attach("a", "planner");
    Agent coder = pair.attach("b", "coder", mask_of(Medium::topk) | mask_of(Medium::window) | mask_of(Medium::summary));
    for (const std::uint32_t length : {40U, 1000U}) {
      CAPTURE(length);
      Growing doc(planner, 20 + length, length);
      const Context context = doc.commit(length);
      CHECK_FALSE(send(planner, context, "coder", Medium::topk).status.ok());  // nobody knows yet what matters
      std::vector<float> importance(length);
      for (std::uint32_t i = 0; i < length; ++i) importance[i] = static_cast<float>(i * 7 % length);
      REQUIRE(planner.set_importance(context, 0, importance).ok());
      for (const Medium medium : {Medium::topk, Medium::window, Medium::summary, Medium::topk}) {
        CAPTURE(medium_name(medium));
        const Outcome sent = send(planner, context, "coder", medium);
        REQUIRE_MESSAGE(sent.status.ok(), name(sent.status.code));
        auto got = coder.receive(kSoon);
        REQUIRE_MESSAGE(got.ok(), (got.ok() ? "" : got.error().message));
        CHECK(got->medium() == medium);
        if (medium == Medium::summary) {
          CHECK(got->summary_kind() == static_cast<std::uint8_t>(Summary::Kind::token_ids));
          CHECK(got->summary().size() >= 40 * sizeof(TokenId));
          CHECK(got->summary().size() <= 100 * sizeof(TokenId));
          continue;
        }
        CHECK(std::vector<TokenId>(got->tokens().begin(), got->tokens().end()) == doc.all);
        CHECK(differences(*got, doc.seed) == 0);
        CHECK(got->epsilon() > 0.0);
        std::size_t rows = 0;
        for (const BlockView block : got->blocks()) rows += block.tokens;
        if (medium == Medium::topk) {
          CHECK(rows == length / 2);
          REQUIRE(got->positions().size() == rows);
          CHECK(got->positions().front() == 0);          // a sink
          CHECK(got->positions().back() == length - 1);  // the newest
        } else {
          CHECK(got->positions().empty());
          CHECK(rows == (length == 40 ? 40 : 16 + 8 * 16 + 8));  // block 0, and the last nine
        }
      }
    }
  }
}

TEST_CASE("two nodes / the receiver fetches, and several receivers of one node cost one copy") {
  Pair pair(kLinks[0]);
  Agent planner = pair.attach("a", "planner");
  Agent coder = pair.attach("b", "coder");
  Agent tester = pair.attach("b", "tester");
  Growing doc(planner, 5, 1000);
  const Context context = doc.commit(800);
  CHECK(send(planner, context, "coder", Medium::full).status.ok());
  auto first = coder.receive(kSoon);
  REQUIRE(first.ok());
  const Outcome again = send(planner, context, "tester", Medium::full);
  CHECK(again.status.ok());
  CHECK(again.missing_blocks == 0);
  auto second = tester.receive(kSoon);
  REQUIRE(second.ok());
  CHECK(differences(*second, 5) == 0);
  auto ticket = tester.fetch("planner", "doc-5");
  REQUIRE(ticket.ok());
  const auto fetched = tester.wait(ticket.value(), kSoon);
  REQUIRE(fetched.ok());
  CHECK(fetched->front().status.ok());
  auto absent = tester.fetch("planner", "no-such-context");
  REQUIRE(absent.ok());
  const auto refused = tester.wait(absent.value(), kSoon);
  REQUIRE(refused.ok());
  CHECK(refused->front().status.code == Code::not_found);
}

TEST_CASE("two nodes / a peer killed mid-transfer ends the ticket once, and its next life is served") {
  for (const bool stop : {false, true}) {   // killed, or stopped so that its sockets stay open
    CAPTURE(stop);
    Pair pair(kLinks[0]);
    Agent planner = pair.attach("a", "planner");
    std::optional<Agent> coder(pair.attach("b", "coder"));
    Growing doc(planner, 3, 4000);
    REQUIRE(send(planner, doc.commit(100), "coder", Medium::full).status.ok());
    const Context big = doc.commit(4000);
    SendOptions options;
    options.medium = Medium::full;
    options.deadline = seconds(8);
    pair.b().stop();   // the bytes in flight stay in flight
    auto ticket = planner.send(big, {"coder"}, options);
    REQUIRE(ticket.ok());
    if (!stop) pair.b().signal(SIGKILL);
    const auto outcomes = planner.wait(ticket.value(), kSoon);
    REQUIRE_MESSAGE(outcomes.ok(), (outcomes.ok() ? "" : outcomes.error().message));
    REQUIRE(outcomes->size() == 1);
    CHECK_FALSE(outcomes->front().status.ok());
    INFO(name(outcomes->front().status.code));
    if (stop) {
      pair.b().signal(SIGCONT);
      pair.b().signal(SIGTERM);
    }
    CHECK(pair.b().wait(kSoonMs) >= 0);
    coder.reset();
    pair.start_b();
    coder.emplace(pair.attach("b", "coder"));
    CHECK(send(planner, big, "coder", Medium::full).status.ok());
    auto got = coder->receive(kSoon);
    REQUIRE(got.ok());
    CHECK(differences(*got, 3) == 0);
  }
}

TEST_CASE("two nodes / the receiver's daemon is killed while chunks are on their way to the lane's own worker: the sender's lives") {
  constexpr Link kPaced{.name = "dedicated, paced", .extra = "[runtime]\nmode = \"dedicated\"\n", .tcp = "pacing = \"8Mbit/s\"\n"};
  Pair pair(kPaced);
  Agent planner = pair.attach("a", "planner");
  Growing doc(planner, 6, 4000);
  const Context big = doc.commit(4000);
  for (int round = 0; round < 6; ++round) {
    CAPTURE(round);
    Agent coder = pair.attach("b", "coder");
    SendOptions options;
    options.medium = Medium::full;
    Result<Ticket> ticket = planner.send(big, {"coder"}, options);
    REQUIRE(ticket.ok());
    auto outcomes = planner.wait(*ticket, milliseconds(150));
    const auto until = std::chrono::steady_clock::now() + kSoon;
    while (outcomes.ok() && std::chrono::steady_clock::now() < until) {  // its directory was still under way
      REQUIRE(outcomes->front().status.code == Code::not_found);
      ticket = planner.send(big, {"coder"}, options);
      REQUIRE(ticket.ok());
      outcomes = planner.wait(*ticket, milliseconds(150));
    }
    REQUIRE(outcomes.status().code == Code::timed_out);  // so it is on its way
    pair.b().signal(SIGKILL);
    outcomes = planner.wait(*ticket, kSoon);
    REQUIRE_MESSAGE(outcomes.ok(), (outcomes.ok() ? "" : outcomes.error().message));
    CHECK(!outcomes->front().status.ok());
    REQUIRE(planner.attached());
    pair.start_b();
  }
  CHECK(planner.begin_task({}).ok());
}

TEST_CASE("two nodes / the sender's daemon is killed: its agent is told, the other side shows nothing partial") {
  Pair pair(kLinks[0]);
  Agent planner = pair.attach("a", "planner");
  Agent coder = pair.attach("b", "coder");
  Growing doc(planner, 4, 4000);
  REQUIRE(send(planner, doc.commit(100), "coder", Medium::full).status.ok());
  REQUIRE(coder.receive(kSoon).ok());
  const Context big = doc.commit(4000);
  pair.b().stop();
  auto ticket = planner.send(big, {"coder"});
  REQUIRE(ticket.ok());
  pair.a().signal(SIGKILL);
  pair.b().signal(SIGCONT);
  const auto outcomes = planner.wait(ticket.value(), kSoon);
  const bool told = !outcomes.ok() && outcomes.status().code == Code::peer_down;
  CHECK(told);
  auto got = coder.receive(milliseconds(500));
  if (got.ok()) CHECK(differences(*got, 4) == 0);   // all of it had arrived: then whole and right
  CHECK(coder.begin_task({}).ok());
}

}  // namespace
}  // namespace kvrail::test
