// The public API over a real engine on one node: what goes in comes out.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/ipc/embedded_port.h"
#include "tests/ipc/engine_rig.h"

namespace kvrail::test {
namespace {

Agent attach(const std::string& socket, const std::string& name, const std::string& tenant = "test") {
  Result<Agent> agent = Agent::attach(options_of(socket, name, tenant));
  REQUIRE_MESSAGE(agent.ok(), agent.error().message);
  return std::move(*agent);
}

Context commit(Agent& agent, std::string_view name, std::size_t token_count, Blocks& blocks, std::uint64_t seed) {
  for (std::size_t i = 0; i < blocks.size(); ++i) fill(blocks.slot(i), seed + i);
  Result<Context> context = agent.commit(name, tokens_of(token_count), blocks, Fence::none(), nullptr, kSoon);
  REQUIRE_MESSAGE(context.ok(), context.error().message);
  return *context;
}

Blocks allocate(Agent& agent, std::uint32_t count) {
  Result<Blocks> blocks = agent.allocate(small_layout(), count, Place::host(), kSoon);
  REQUIRE_MESSAGE(blocks.ok(), blocks.error().message);
  return std::move(*blocks);
}

Delivery receive(Agent& agent) {
  Result<Delivery> delivery = agent.receive(kSoon);
  REQUIRE_MESSAGE(delivery.ok(), delivery.error().message);
  return std::move(*delivery);
}

}  // namespace

TEST_CASE("ipc / a context is handed over on one node, no byte copied") {
  EngineRig rig;
  const std::uint64_t copied_before = rig.node().counters().copied_bytes;
  rig.serve([&] {
    Agent planner = attach(rig.socket(), "planner");
    Agent coder = attach(rig.socket(), "coder");
    CHECK(planner.tenant() == "test");
    Result<Task> task = planner.begin_task({.workflow = "review", .deadline = kSoon}, kSoon);
    REQUIRE_MESSAGE(task.ok(), task.error().message);
    CHECK(task->id != 0);
    Blocks blocks = allocate(planner, 3);
    const Context context = commit(planner, "conversation-42", 40, blocks, 5);
    CHECK(context.version == 1);
    const Result<Ticket> ticket = planner.send(context, {"coder"}, {.task = *task, .deadline = kSoon});
    REQUIRE(ticket.ok());
    {
      const Delivery delivery = receive(coder);
      CHECK(delivery.owner() == "planner");
      CHECK(delivery.context() == "conversation-42");
      CHECK(delivery.version() == 1);
      CHECK(delivery.layout() == small_layout());
      CHECK(delivery.epsilon() == 0.0);
      CHECK(delivery.task().id == task->id);
      REQUIRE(delivery.tokens().size() == 40);
      CHECK(std::equal(delivery.tokens().begin(), delivery.tokens().end(), tokens_of(40).begin()));
      REQUIRE(delivery.blocks().size() == 3);
      std::size_t i = 0;
      for (const BlockView& block : delivery.blocks()) {
        CHECK(block.position == i * 16);
        CHECK(block.tokens == (i < 2 ? 16 : 8));
        CHECK(holds(block.data, 5 + i));
        ++i;
      }
    }
    const Result<std::vector<Outcome>> outcomes = planner.wait(*ticket, kSoon);
    REQUIRE_MESSAGE(outcomes.ok(), outcomes.error().message);
    REQUIRE(outcomes->size() == 1);
    CHECK((*outcomes)[0].status.ok());
    CHECK(planner.end_task(*task).ok());
    CHECK(planner.detach(kSoon).ok());
    CHECK_FALSE(planner.attached());
    CHECK(planner.receive(Nanoseconds(0)).status().code != Code::ok);
  });
  CHECK(rig.node().counters().copied_bytes == copied_before);
  CHECK(rig.until([&] { return rig.server().empty(); }));
  CHECK(rig.deliveries() == 0);
}

TEST_CASE("ipc / a delivery's memory cannot be written by the receiver") {
  EngineRig rig;
  rig.serve([&] {
    Agent planner = attach(rig.socket(), "planner");
    Agent coder = attach(rig.socket(), "coder");
    Blocks blocks = allocate(planner, 1);
    const Context context = commit(planner, "c", 16, blocks, 1);
    REQUIRE(planner.send(context, {"coder"}).ok());
    const Delivery delivery = receive(coder);
    void* page = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(delivery.blocks()[0].data.data()) & ~std::uintptr_t{4095});
    CHECK(::mprotect(page, 4096, PROT_READ | PROT_WRITE) != 0);
    void* manifest = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(delivery.tokens().data()) & ~std::uintptr_t{4095});
    CHECK(::mprotect(manifest, 4096, PROT_READ | PROT_WRITE) != 0);
  });
}

TEST_CASE("ipc / a context grows in place: the tail's free rows, then new blocks") {
  EngineRig rig;
  rig.serve([&] {
    Agent planner = attach(rig.socket(), "planner");
    Agent coder = attach(rig.socket(), "coder");
    Blocks blocks = allocate(planner, 1);
    const Context first = commit(planner, "c", 10, blocks, 1);
    REQUIRE(planner.send(first, {"coder"}).ok());
    const Delivery before = receive(coder);
    blocks.append(allocate(planner, 2));
    CHECK(blocks.size() == 3);
    fill(blocks.slot(1), 2);
    fill(blocks.slot(2), 3);
    Result<Context> second = planner.commit("c", tokens_of(40), blocks, Fence::none(), nullptr, kSoon);
    REQUIRE_MESSAGE(second.ok(), second.error().message);
    CHECK(second->version == 2);
    REQUIRE(planner.send(*second, {"coder"}).ok());
    const Delivery after = receive(coder);
    CHECK(before.tokens().size() == 10);
    CHECK(after.tokens().size() == 40);
    REQUIRE(after.blocks().size() == 3);
    CHECK(holds(after.blocks()[0].data, 1));
    CHECK(holds(after.blocks()[2].data, 3));
  });
}

TEST_CASE("ipc / fetch, several receivers, cancel, drop and tokens only") {
  EngineRig rig;
  rig.serve([&] {
    Agent planner = attach(rig.socket(), "planner");
    Agent coder = attach(rig.socket(), "coder");
    Agent tester = attach(rig.socket(), "tester");
    Blocks blocks = allocate(planner, 1);
    const Context context = commit(planner, "c", 16, blocks, 1);
    const Result<Ticket> fetched = coder.fetch("planner", "c");
    REQUIRE(fetched.ok());
    CHECK(receive(coder).tokens().size() == 16);
    CHECK(coder.wait(*fetched, kSoon).ok());
    const Result<Ticket> both = planner.send(context, {"coder", "tester"}, {.critical = true});
    REQUIRE(both.ok());
    CHECK(receive(coder).critical());
    CHECK(receive(tester).critical());
    const auto outcomes = planner.wait(*both, kSoon);
    REQUIRE(outcomes.ok());
    CHECK(outcomes->size() == 2);
    CHECK(planner.wait(*both, kSoon).status().code == Code::not_found);  // forgotten by now

    const Result<Ticket> nobody = planner.send(context, {"no-such-agent"}, {.deadline = std::chrono::milliseconds(50)});
    REQUIRE(nobody.ok());
    const auto lost = planner.wait(*nobody, kSoon);
    CHECK((!lost.ok() || !(*lost)[0].status.ok()));
    const Result<Ticket> unknown = coder.fetch("planner", "no-such-context");
    REQUIRE(unknown.ok());
    const auto none = coder.wait(*unknown, kSoon);
    CHECK((!none.ok() || !(*none)[0].status.ok()));
    CHECK(planner.cancel(*nobody).ok());

    Blocks no_blocks;
    const Result<Context> tokens = planner.commit("only-tokens", tokens_of(5), no_blocks, Fence::none(), nullptr, kSoon);
    if (tokens.ok()) {
      REQUIRE(planner.send(*tokens, {"tester"}).ok());
      const Delivery delivery = receive(tester);
      CHECK(delivery.tokens().size() == 5);
      CHECK(delivery.blocks().empty());
    } else {
      CHECK(tokens.status().code == Code::invalid_argument);
    }
    CHECK(planner.drop_context("c").ok());
    CHECK(planner.receive(Nanoseconds(0)).status().code == Code::timed_out);
  });
}

TEST_CASE("ipc / blocks go back when nobody commits them, and too many are refused with a reason") {
  EngineRig rig;
  rig.serve([&] {
    Agent planner = attach(rig.socket(), "planner");
    const std::uint32_t all = (1 << 20) / (8 << 10);
    for (int round = 0; round < 20; ++round) {
      Blocks blocks = allocate(planner, all);
      CHECK(planner.allocate(small_layout(), 1, Place::host(), kSoon).status().code == Code::out_of_capacity);
    }
    CHECK(planner.allocate(small_layout(), 1 << 30, Place::host(), kSoon).status().code == Code::too_large);
    CHECK(planner.allocate(small_layout(), 0, Place::host(), kSoon).status().code == Code::invalid_argument);
    Layout other = small_layout();
    other.layers = 3;
    CHECK(planner.allocate(other, 1).status().code == Code::layout_mismatch);
  });
}

TEST_CASE("ipc / device memory and GPU fences are in the API and say that they are not built in") {
  EngineRig rig;
  rig.serve([&] {
    Agent planner = attach(rig.socket(), "planner");
    CHECK(planner.allocate(small_layout(), 1, Place::device(0)).status().code == Code::not_built_in);
    ImportSource source;
    source.bytes = small_layout().block_bytes();
    source.kind = ImportSource::Kind::dmabuf_fd;
    CHECK(planner.import(source).status().code == Code::not_built_in);
    source.kind = ImportSource::Kind::cuda_ipc;
    CHECK(planner.import(source).status().code == Code::not_built_in);
    Blocks blocks = allocate(planner, 1);
    Fence fence;
    fence.kind = Fence::Kind::external;
    CHECK(planner.commit("c", tokens_of(16), blocks, fence).status().code == Code::not_built_in);
    fence.kind = Fence::Kind::eventfd;
    fence.fd = ::eventfd(0, EFD_CLOEXEC);
    CHECK(planner.commit("c", tokens_of(16), blocks, fence, nullptr, std::chrono::milliseconds(20)).status().code == Code::timed_out);
    REQUIRE(::eventfd_write(fence.fd, 1) == 0);
    CHECK(planner.commit("c", tokens_of(16), blocks, fence, nullptr, kSoon).ok());
    ::close(fence.fd);
  });
}

TEST_CASE("ipc / a context grows on what was delivered: shared blocks need no slots, the others only theirs") {
  EngineRig rig;
  rig.serve([&] {
    Agent planner = attach(rig.socket(), "planner");
    Agent coder = attach(rig.socket(), "coder");
    Blocks blocks = allocate(planner, 3);
    REQUIRE(planner.send(commit(planner, "doc", 40, blocks, 5), {"coder"}).ok());
    const auto tokens = tokens_of(70);  // those of the document go on
    Blocks more;
    {
      const Delivery delivery = receive(coder);
      more = allocate(coder, 3);
      more.start_at(2);
      for (std::size_t i = 0; i < more.size(); ++i) fill(more.slot(i), 20 + i);
      more.start_at(3);  // block 2 is a partial one there: nobody has it whole
      CHECK(coder.commit("work", tokens, more, Fence::none(), &delivery).status().code == Code::invalid_argument);
      more.start_at(1);
      CHECK(coder.commit("work", tokens, more, Fence::none(), &delivery).status().code == Code::invalid_argument);
      more.start_at(2);
      CHECK(coder.commit("work", tokens_of(70, 9'000), more, Fence::none(), &delivery).status().code ==
            Code::invalid_argument);  // other tokens than were delivered
      CHECK(coder.commit("work", std::span(tokens).first(60), more, Fence::none(), &delivery).ok());
    }
    CHECK(coder.commit("work", tokens, more).ok());  // on its own version before; the delivery has gone
    Blocks none;
    CHECK(coder.commit("work", std::span(tokens).first(32), none).ok());
    REQUIRE(coder.send(*coder.commit("work", tokens, more), {"planner"}).ok());
    const Delivery back = receive(planner);
    REQUIRE(back.blocks().size() == 5);
    CHECK(holds(back.blocks()[0].data, 5));
    CHECK(holds(back.blocks()[1].data, 6));
    CHECK(holds(back.blocks()[2].data, 20));
    CHECK(holds(back.blocks()[4].data, 22));
  });
}

TEST_CASE("ipc / imports of host memory: a memfd in place, pages and other files by a counted copy") {
  EngineRig rig;
  rig.serve([&] {
    Agent planner = attach(rig.socket(), "planner");
    Agent coder = attach(rig.socket(), "coder");
    const std::uint64_t block = small_layout().block_bytes();
    const int fd = ::memfd_create("cache", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(::ftruncate(fd, static_cast<off_t>(4 * block)) == 0);
    ImportSource source;
    source.fd = fd;
    source.offset = block;
    source.bytes = 3 * block;
    Result<Blocks> imported = planner.import(source, kSoon);
    REQUIRE_MESSAGE(imported.ok(), imported.error().message);
    CHECK(imported->size() == 3);
    CHECK(imported->copied_bytes() == 0);
    CHECK(::ftruncate(fd, 0) != 0);  // sealed by the engine
    const Context context = commit(planner, "imported", 48, *imported, 9);
    REQUIRE(planner.send(context, {"coder"}).ok());
    {
      const Delivery delivery = receive(coder);
      REQUIRE(delivery.blocks().size() == 3);
      for (std::size_t i = 0; i < 3; ++i) CHECK(holds(delivery.blocks()[i].data, 9 + i));
      std::vector<std::byte> file(3 * block);
      REQUIRE(::pread(fd, file.data(), file.size(), static_cast<off_t>(block)) == static_cast<ssize_t>(file.size()));
      CHECK(holds(std::span<const std::byte>(file).first(block), 9));  // the very same memory
    }
    ::close(fd);

    std::vector<std::byte> pages(2 * block);
    fill(std::span(pages).first(block), 70);
    fill(std::span(pages).subspan(block), 71);
    ImportSource host;
    host.kind = ImportSource::Kind::host_pages;
    host.pages = pages.data();
    host.bytes = pages.size();
    Result<Blocks> copied = planner.import(host, kSoon);
    REQUIRE_MESSAGE(copied.ok(), copied.error().message);
    CHECK(copied->copied_bytes() == 2 * block);
    CHECK(holds(copied->slot(1), 71));

    const std::string path = rig.path("file");
    const int plain = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    REQUIRE(::write(plain, pages.data(), pages.size()) == static_cast<ssize_t>(pages.size()));
    source.fd = plain;
    source.offset = 0;
    source.bytes = 2 * block;
    Result<Blocks> from_file = planner.import(source, kSoon);
    REQUIRE_MESSAGE(from_file.ok(), from_file.error().message);
    CHECK(from_file->copied_bytes() == 2 * block);
    CHECK(holds(from_file->slot(0), 70));
    ::close(plain);
    source.bytes = block + 1;
    CHECK(planner.import(source, kSoon).status().code == Code::invalid_argument);
  });
}

TEST_CASE("ipc / summaries are asked of the callback, inside the calls that wait") {
  EngineRig rig;
  rig.serve([&] {
    AttachOptions options = options_of(rig.socket(), "planner");
    options.summary_bytes = 64;
    Result<Agent> attached = Agent::attach(options);
    REQUIRE(attached.ok());
    Agent planner = std::move(*attached);
    AttachOptions other = options_of(rig.socket(), "stranger");
    other.layout.layers = 1;  // another model: KV has no meaning to it
    other.tokenizer = {3, 4};
    other.accepted = kDefaultAccepted | mask_of(Medium::summary);
    Result<Agent> stranger = Agent::attach(other);
    REQUIRE(stranger.ok());
    int asked = 0;
    planner.on_summary([&](const SummaryRequest& request) {
      ++asked;
      Summary summary;
      summary.kind = Summary::Kind::text;
      const std::string text = std::to_string(request.tokens.size()) + " tokens";
      summary.bytes.assign(reinterpret_cast<const std::byte*>(text.data()), reinterpret_cast<const std::byte*>(text.data()) + text.size());
      return summary;
    });
    Blocks blocks = allocate(planner, 1);
    const Context context = commit(planner, "c", 16, blocks, 1);
    const Result<Ticket> ticket = planner.send(context, {"stranger"}, {.medium = Medium::summary});
    REQUIRE(ticket.ok());
    const auto outcome = planner.wait(*ticket, kSoon);
    REQUIRE_MESSAGE(outcome.ok(), outcome.error().message);
    CHECK((*outcome)[0].status.ok());
    CHECK(asked == 1);
    const Delivery delivery = receive(*stranger);
    CHECK(delivery.medium() == Medium::summary);
    CHECK(delivery.summary_kind() == 0);
    const std::string text(reinterpret_cast<const char*>(delivery.summary().data()), delivery.summary().size());
    CHECK(text == "16 tokens");
    // An agent that has none to give, or too large a one, keeps nobody waiting.
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{900'000}, std::size_t{4'000'000}}) {
      CAPTURE(bytes);
      planner.on_summary([bytes](const SummaryRequest&) {
        Summary summary;
        summary.bytes.resize(bytes);
        return summary;
      });
      const Result<Ticket> declined = planner.send(context, {"stranger"}, {.medium = Medium::summary});
      REQUIRE(declined.ok());
      const auto end = planner.wait(*declined, kSoon);
      REQUIRE_MESSAGE(end.ok(), end.error().message);
      CHECK((*end)[0].status.code == Code::rejected);
    }
  });
}

TEST_CASE("ipc / tenants are apart: names, arenas and deliveries") {
  EngineRig rig;
  rig.serve([&] {
    Agent blue = attach(rig.socket(), "planner", "blue");
    Agent green = attach(rig.socket(), "planner", "green");  // the same name, another agent
    Agent green2 = attach(rig.socket(), "coder", "green");
    Blocks blocks = allocate(blue, 1);
    const Context context = commit(blue, "secret", 16, blocks, 1);
    const Result<Ticket> sent = blue.send(context, {"coder"}, {.deadline = std::chrono::milliseconds(50)});
    REQUIRE(sent.ok());
    const auto outcome = blue.wait(*sent, kSoon);
    CHECK((!outcome.ok() || !(*outcome)[0].status.ok()));
    const Result<Ticket> fetch = green2.fetch("planner", "secret", {.deadline = std::chrono::milliseconds(50)});
    REQUIRE(fetch.ok());
    const auto got = green2.wait(*fetch, kSoon);
    CHECK((!got.ok() || !(*got)[0].status.ok()));
    CHECK(green2.receive(Nanoseconds(0)).status().code == Code::timed_out);
    const Result<Agent> twin = Agent::attach(options_of(rig.socket(), "planner", "blue"));
    CHECK(twin.status().code == Code::already_exists);
    CHECK_FALSE(twin.error().message.empty());
  });
}

TEST_CASE("ipc / an event loop sleeps on one descriptor") {
  EngineRig rig;
  rig.serve([&] {
    Agent planner = attach(rig.socket(), "planner");
    Agent coder = attach(rig.socket(), "coder");
    Blocks blocks = allocate(planner, 1);
    const Context context = commit(planner, "c", 16, blocks, 1);
    for (int round = 0; round < 50; ++round) {
      REQUIRE(coder.arm());
      const Result<Ticket> ticket = planner.send(context, {"coder"});
      REQUIRE(ticket.ok());
      pollfd entry{coder.event_fd(), POLLIN, 0};
      REQUIRE(::poll(&entry, 1, 20'000) == 1);
      REQUIRE(coder.poll().ok());
      CHECK(coder.receive(Nanoseconds(0)).ok());
      CHECK(planner.wait(*ticket, kSoon).ok());
    }
  });
}

TEST_CASE("ipc / more commands than the ring and more payload than the scratch hold") {
  EngineRig rig;
  rig.serve([&] {
    AttachOptions options = options_of(rig.socket(), "planner");
    options.scratch_bytes = 64 << 10;
    Result<Agent> planner = Agent::attach(options);
    REQUIRE(planner.ok());
    Agent coder = attach(rig.socket(), "coder");
    Blocks blocks = allocate(*planner, 1);
    const Context context = commit(*planner, "c", 16, blocks, 1);
    std::vector<std::string_view> names(64, "coder");
    std::vector<Ticket> tickets;
    // 64 names are 4 KiB: 16 of these fill the scratch, 256 the ring; nobody reads in between.
    for (int i = 0; i < 300; ++i) {
      const Result<Ticket> ticket = planner->send(context, {"coder"});
      REQUIRE_MESSAGE(ticket.ok(), ticket.error().message);
      tickets.push_back(*ticket);
    }
    for (std::size_t i = 0; i < tickets.size(); ++i) CHECK(receive(coder).tokens().size() == 16);
    for (const Ticket ticket : tickets) CHECK(planner->wait(ticket, kSoon).ok());
    const auto big = planner->commit("big", tokens_of(20'000), blocks);
    CHECK(big.status().code == Code::invalid_argument);  // one block is too few
    Blocks none;
    CHECK(planner->commit("big", tokens_of(20'000), none).status().code == Code::too_large);
  });
}

TEST_CASE("ipc / embedded agents use the same rings, driven inline or by a worker thread") {
  EngineRig rig;
  SUBCASE("inline") {
    auto port = engine::ipc::EmbeddedPort::create(rig.sessions(), [&rig] { rig.round(); });
    REQUIRE(port.ok());
    Result<Agent> planner = port->attach(options_of("", "planner"));
    REQUIRE_MESSAGE(planner.ok(), planner.error().message);
    Result<Agent> coder = port->attach(options_of("", "coder"));
    REQUIRE(coder.ok());
    Blocks blocks = allocate(*planner, 2);
    const Context context = commit(*planner, "c", 32, blocks, 3);
    const Result<Ticket> ticket = planner->send(context, {"coder"});
    REQUIRE(ticket.ok());
    {
      const Delivery delivery = receive(*coder);
      REQUIRE(delivery.blocks().size() == 2);
      CHECK(delivery.blocks()[1].data.data() == blocks.slot(1).data());  // one address space, no copy
    }
    CHECK(planner->wait(*ticket, kSoon).ok());
    std::vector<std::byte> pages(small_layout().block_bytes() + 16);
    auto* aligned = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(pages.data()) + 15) & ~std::uintptr_t{15});
    ImportSource source;
    source.kind = ImportSource::Kind::host_pages;
    source.pages = aligned;
    source.bytes = small_layout().block_bytes();
    {
      Result<Blocks> imported = planner->import(source, kSoon);
      REQUIRE_MESSAGE(imported.ok(), imported.error().message);
      CHECK(imported->copied_bytes() == 0);
      CHECK(imported->slot(0).data() == aligned);
    }
    CHECK(planner->detach(kSoon).ok());
  }
  SUBCASE("served by another thread, sleeping") {
    rig.serve([&] {
      auto port = engine::ipc::EmbeddedPort::create(rig.sessions());
      REQUIRE(port.ok());
      Result<Agent> planner = port->attach(options_of("", "planner"));
      REQUIRE(planner.ok());
      Result<Agent> coder = port->attach(options_of("", "coder"));
      REQUIRE(coder.ok());
      Blocks blocks = allocate(*planner, 1);
      const Context context = commit(*planner, "c", 16, blocks, 3);
      for (int i = 0; i < 100; ++i) {
        const Result<Ticket> ticket = planner->send(context, {"coder"});
        REQUIRE(ticket.ok());
        CHECK(receive(*coder).tokens().size() == 16);
        CHECK(planner->wait(*ticket, kSoon).ok());
      }
    });
  }
  SUBCASE("pages that were lent are the agent's again when detach() says so") {
    rig.serve([&] {
      auto port = engine::ipc::EmbeddedPort::create(rig.sessions());
      REQUIRE(port.ok());
      Result<Agent> planner = port->attach(options_of("", "planner"));
      REQUIRE(planner.ok());
      Result<Agent> coder = port->attach(options_of("", "coder"));
      REQUIRE(coder.ok());
      std::vector<std::byte> pages(2 * small_layout().block_bytes() + 16);
      ImportSource source;
      source.kind = ImportSource::Kind::host_pages;
      source.pages = pages.data() + (16 - reinterpret_cast<std::uintptr_t>(pages.data()) % 16) % 16;
      source.bytes = 2 * small_layout().block_bytes();
      Result<Blocks> lent = planner->import(source, kSoon);
      REQUIRE(lent.ok());
      const Context context = commit(*planner, "c", 32, *lent, 3);
      REQUIRE(planner->send(context, {"coder"}).ok());
      {
        const Delivery delivery = receive(*coder);
        CHECK(planner->detach(std::chrono::milliseconds(20)).status().code == Code::timed_out);
        CHECK(holds(delivery.blocks()[1].data, 4));
        const Result<Ticket> late = coder->fetch("planner", "c");
        REQUIRE(late.ok());
        CHECK(coder->wait(*late, kSoon).status().code == Code::not_found);
        CHECK_FALSE(planner->attached());
      }
      CHECK(planner->detach(kSoon).ok());
      std::fill(pages.begin(), pages.end(), std::byte{0xee});
    });
  }
  SUBCASE("over the socket and embedded in one tenant") {
    rig.serve([&] {
      auto port = engine::ipc::EmbeddedPort::create(rig.sessions());
      REQUIRE(port.ok());
      Result<Agent> planner = port->attach(options_of("", "planner"));
      REQUIRE(planner.ok());
      Agent coder = attach(rig.socket(), "coder");
      Blocks blocks = allocate(*planner, 1);
      const Context context = commit(*planner, "c", 16, blocks, 3);
      REQUIRE(planner->send(context, {"coder"}).ok());
      CHECK(holds(receive(coder).blocks()[0].data, 3));
    });
  }
  CHECK(rig.until([&] { return rig.sessions().size() == 0; }));
}

TEST_CASE("ipc / attaching says clearly what is wrong") {
  EngineRig rig;
  rig.serve([&] {
    const auto refused = [&](const std::function<void(AttachOptions&)>& bend) {
      AttachOptions options = options_of(rig.socket(), "planner");
      bend(options);
      const Result<Agent> agent = Agent::attach(options);
      REQUIRE_FALSE(agent.ok());
      CHECK_FALSE(agent.error().message.empty());
      CHECK(agent.error().message.find('\n') == std::string::npos);
      return agent.status().code;
    };
    CHECK(refused([](AttachOptions& o) { o.name = ""; }) == Code::invalid_argument);
    CHECK(refused([](AttachOptions& o) { o.name = std::string(64, 'x'); }) == Code::invalid_argument);
    CHECK(refused([](AttachOptions& o) { o.tenant = "a b"; }) == Code::invalid_argument);
    CHECK(refused([](AttachOptions& o) { o.layout.layers = 0; }) == Code::invalid_argument);
    CHECK(refused([](AttachOptions& o) { o.layout.block_tokens = 1U << 31; }) == Code::invalid_argument);
    CHECK(refused([](AttachOptions& o) { o.layout.dtype = static_cast<Dtype>(99); }) == Code::invalid_argument);
    CHECK(refused([](AttachOptions& o) { o.role = 0; }) == Code::invalid_argument);
    CHECK(refused([](AttachOptions& o) { o.accepted = 0; }) == Code::invalid_argument);
    CHECK(refused([](AttachOptions& o) { o.accepted = 1U << 31; }) == Code::invalid_argument);
    CHECK(refused([](AttachOptions& o) { o.arena_bytes = 1ULL << 60; }) == Code::too_large);
    CHECK(refused([](AttachOptions& o) { o.arena_bytes = 1; }) == Code::too_large);
    CHECK(refused([](AttachOptions& o) { o.scratch_bytes = 1U << 30; }) == Code::too_large);
    CHECK(refused([](AttachOptions& o) { o.socket_path = "/nonexistent/socket"; }) == Code::unreachable);
    CHECK(refused([](AttachOptions& o) { o.socket_path = std::string(200, 'x'); }) == Code::invalid_argument);
    CHECK(attach(rig.socket(), "planner").attached());
  });
}

TEST_CASE("ipc / a policy decides over tenants, whatever an agent wishes") {
  EngineRig rig([](engine::ipc::AttachServerOptions& options) {
    auto policy = engine::ipc::AttachPolicy::create({{::getuid(), {}, "mine"}});
    REQUIRE(policy.ok());
    options.policy = std::move(*policy);
  });
  rig.serve([&] {
    CHECK(attach(rig.socket(), "planner", "").tenant() == "mine");
    CHECK(Agent::attach(options_of(rig.socket(), "planner", "other")).status().code == Code::permission_denied);
  });
  CHECK(rig.server().counters().refused_policy == 1);
}

TEST_CASE("ipc / the engine's goodbye ends every wait with its reason") {
  EngineRig rig;
  std::atomic<bool> attached{false};
  Status seen;
  std::thread client([&] {
    Agent agent = attach(rig.socket(), "planner");
    attached.store(true);
    seen = agent.receive(kSoon).status();
  });
  CHECK(rig.until([&] { return attached.load(); }));
  rig.server().shut_down();
  CHECK(rig.until([&] { return rig.server().empty(); }));
  client.join();
  CHECK(seen.code == Code::shutting_down);
  CHECK(seen.scope == Scope::engine);
}

}  // namespace kvrail::test
