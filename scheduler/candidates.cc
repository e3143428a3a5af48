// The sender's half of the choice: which media are possible and what each would take of its lane.
#include <algorithm>

#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"
#include "scheduler/cost.h"
#include "scheduler/medium_choice.h"
#include "scheduler/split.h"

namespace kvrail::scheduler {
namespace {

constexpr std::uint64_t kTokenIdBytes = 4;
constexpr std::uint64_t kReferenceBytesPerBlock = 16;
constexpr std::array kOffered{Medium::tokens,  Medium::full, Medium::lossless, Medium::int8,   Medium::int4,
                              Medium::lowrank, Medium::topk, Medium::window,   Medium::summary};
// Only a wish selects these: a reference only says where the bytes are, and who gets the embedded
// planes down to the last one pays more for the same rows than with lossless.
constexpr std::array kOnlyWished{Medium::reference, Medium::exact};

bool carries_kv(Medium medium) noexcept {
  return medium != Medium::tokens && medium != Medium::summary;
}

const SparseFacts& sparse_of(const SenderFacts& facts, Medium medium) noexcept {
  return medium == Medium::topk ? facts.topk : facts.window;
}

// Loss beyond the source's. Within one encoding losses don't add: the source has that of its planes already.
std::uint32_t epsilon_of(const SenderFacts& facts, const LossProfile& loss, Medium medium) noexcept {
  const std::uint32_t of = loss.media[static_cast<std::size_t>(medium)].epsilon_ppm;
  if (is_coded(medium) && facts.coded[static_cast<std::size_t>(medium)].came_so)
    return of - std::min(of, facts.source_epsilon_ppm);
  return of + values_loss(loss, medium, sparse_of(facts, medium).values).epsilon_ppm;
}

// Why the sender cannot offer the medium; nullptr when it can.
const char* refusal(const SenderFacts& facts, const LossProfile& loss, Medium medium) noexcept {
  if ((facts.sender_can & mask_of(medium)) == 0) return "the sender cannot make this medium";
  if ((facts.receiver_accepts & mask_of(medium)) == 0)
    return "the receiver does not accept this medium";
  if (carries_kv(medium)) {
    if (!facts.source_has_kv) return "the sender holds tokens only";
    if (!facts.layouts_equal) return "the layouts differ";
  }
  if (medium == Medium::tokens && !facts.tokenizers_equal) return "the tokenizers differ";
  if (medium == Medium::window && facts.window.rows == 0) return "no window is configured";
  if (medium == Medium::topk && facts.topk.rows == 0) return "the agent gave no importance";
  if (medium == Medium::summary && facts.summary_bytes == 0) return "nobody makes a summary of it";
  if (is_coded(medium) && facts.coded[static_cast<std::size_t>(medium)].block_bytes == 0)
    return medium == Medium::lowrank ? "no basis that both sides have" : "the rows cannot be coded so";
  const MediumLoss& of = loss.media[static_cast<std::size_t>(medium)];
  const std::uint64_t source = carries_kv(medium) ? facts.source_epsilon_ppm : 0;
  return under_floor(facts, of, medium, source + epsilon_of(facts, loss, medium));
}

void fill_sizes(const SenderFacts& facts, CandidateCost& out) noexcept {
  const Layout& layout = facts.layout;
  const std::uint64_t tail_tokens = facts.total_tokens % layout.block_tokens;
  const std::uint64_t blocks = div_ceil(facts.total_tokens, layout.block_tokens);
  switch (out.medium) {
    case Medium::tokens:
      out.block_bytes = kTokenIdBytes * layout.block_tokens;
      out.tail_bytes = kTokenIdBytes * tail_tokens;
      break;
    case Medium::full:
      out.block_bytes = layout.block_bytes();
      out.tail_bytes = tail_tokens * layout.token_bytes();
      break;
    case Medium::lossless:
    case Medium::int8:
    case Medium::int4:
    case Medium::exact:
    case Medium::lowrank: {
      const CodedFacts& coded = facts.coded[static_cast<std::size_t>(out.medium)];
      out.block_bytes = coded.block_bytes;
      out.tail_bytes = coded.tail_bytes;
      out.encode_ns_per_block = coded.encode_ns_per_block;
      out.fixed_bytes = coded.fixed_bytes;
      out.first_blocks = coded.first_blocks;
      out.last_blocks = coded.last_blocks;
      break;
    }
    case Medium::topk:
    case Medium::window: {
      const SparseFacts& sparse = sparse_of(facts, out.medium);
      out.fixed_bytes = sparse.fixed_bytes;
      out.block_bytes = sparse.block_bytes;
      out.tail_bytes = sparse.tail_bytes;
      out.encode_ns_per_block = sparse.encode_ns_per_block;
      out.values = sparse.values;
      out.rows = sparse.rows;
      break;
    }
    case Medium::reference:
      out.fixed_bytes = kReferenceBytesPerBlock * blocks;
      break;
    case Medium::summary:
      out.fixed_bytes = facts.summary_bytes;
      break;
    default:
      KVRAIL_UNREACHABLE();
  }
}

std::uint64_t expected_bytes(const SenderFacts& facts, const CandidateCost& it) noexcept {
  if (!is_delta(it.medium)) return it.fixed_bytes;
  const std::uint64_t missing = std::min(facts.believed_missing_tokens, facts.total_tokens);
  if (missing == 0 && is_coded(it.medium)) return 0;
  return it.fixed_bytes + it.block_bytes / facts.layout.block_tokens * missing;
}

// The receiver takes of it the share that it lacks. The price is not linear in the bytes, so it is
// taken at the bytes expected to move and scaled up: right where the belief is.
std::uint64_t whole_price_ns(const SenderFacts& facts, const CandidateCost& it) noexcept {
  const std::uint64_t whole =
      is_delta(it.medium)
          ? it.fixed_bytes + it.tail_bytes +
                mul_div(it.block_bytes, facts.total_tokens / facts.layout.block_tokens, 1)
          : it.fixed_bytes;
  const std::uint64_t expected = std::min(expected_bytes(facts, it), whole);
  const std::uint64_t at = expected == 0 ? whole : expected;
  if (at == 0 || it.medium == Medium::tokens) return 0;  // ids go with every offer
  const std::uint64_t price = priced(sending_ns(at, it.rate_bytes_per_s), facts.nic_price_ppm,
                                     facts.nic_arrivals_milli_per_s);
  return mul_div(price, whole, at);
}

CandidateCost candidate(const SenderFacts& facts, const LossProfile& loss, Medium medium) noexcept {
  CandidateCost out;
  out.medium = medium;
  fill_sizes(facts, out);
  out.rate_bytes_per_s = std::max<std::uint64_t>(facts.lane_rate_bytes_per_s, 1);
  // From the decision on. Token ids are there by then. What follows the answer takes a round trip;
  // bulk leaves behind what the lane holds already, which goes on meanwhile.
  const auto round_trip = static_cast<std::uint64_t>(std::max<TimeNs>(facts.round_trip_ns, 0));
  const auto backlog = static_cast<std::uint64_t>(std::max<TimeNs>(facts.lane_backlog_ns, 0));
  if (medium == Medium::summary) out.wait_ns = round_trip + facts.summary_ns;
  if (is_kv(medium))
    out.wait_ns = std::max(round_trip, backlog);
  out.price_ns = whole_price_ns(facts, out);
  out.epsilon_ppm = epsilon_of(facts, loss, medium);
  return out;
}

// What the sender expects it to take without the receiver's part, for the order of the offer only.
std::uint64_t guess_ns(const SenderFacts& facts, const CandidateCost& it) noexcept {
  const std::uint64_t missing =
      is_sparse(it.medium) ? it.rows : std::min(facts.believed_missing_tokens, facts.total_tokens);
  const std::uint64_t blocks = div_ceil(missing, facts.layout.block_tokens);
  const auto sending =
      static_cast<std::uint64_t>(sending_ns(expected_bytes(facts, it), it.rate_bytes_per_s));
  return it.wait_ns + std::max(sending, blocks * it.encode_ns_per_block);
}

}  // namespace

LossProfile LossProfile::built_in() noexcept {
  LossProfile profile{};
  const auto set = [&profile](Medium medium, std::uint32_t epsilon_ppm,
                              std::uint32_t extra_tokens_milli) {
    profile.media[static_cast<std::size_t>(medium)] = {epsilon_ppm, 1000, extra_tokens_milli};
  };
  // Exact media keep the zeros. topk, at half of the tokens, and lowrank, at 8x, are as measured in
  // perf/model/recall.profile.toml. So is the ε of int8 and int4, but that model forgives more than
  // others do: their κ and extra tokens stay on the careful side. window and summary are guesses.
  // All hold only until a model has been calibrated.
  set(Medium::int8, 40, 0);
  set(Medium::int4, 9'500, 1'000);
  profile.media[static_cast<std::size_t>(Medium::topk)] = {508'000, 459, 96'000};
  profile.media[static_cast<std::size_t>(Medium::lowrank)] = {10'300, 24, 0};
  set(Medium::window, 100'000, 64'000);
  set(Medium::summary, 200'000, 128'000);
  return profile;
}

DepthLoss weighed(const DepthLoss& loss) noexcept {
  DepthLoss out = loss;
  for (LossProfile& depth : out.depths) {
    for (MediumLoss& of : depth.media) {
      const std::uint64_t least = of.epsilon_ppm > 0 ? 1 : 0;  // what loses something never counts as exact
      const std::uint64_t weighed = std::max(mul_div(of.epsilon_ppm, of.kappa_milli, 1000), least);
      of.epsilon_ppm = static_cast<std::uint32_t>(std::min<std::uint64_t>(weighed, UINT32_MAX));
      of.kappa_milli = 1000;
    }
  }
  return out;
}

std::uint32_t most_loss_ppm(std::uint32_t floor_ppm) noexcept {
  if (floor_ppm == 0) return UINT32_MAX;
  const std::uint64_t floor = std::min<std::uint64_t>(floor_ppm, kPpm);
  auto most = static_cast<std::uint32_t>(mul_div(static_cast<std::uint64_t>(ln_ratio_q32(kPpm, floor)), kPpm, static_cast<std::uint64_t>(kOneQ32)));
  const MediumLoss plain;
  while (most > 0 && fidelity_ppm(plain, most) < floor) --most;  // the tables round down
  return most;
}

std::uint64_t least_kv_bytes(const SenderFacts& facts) noexcept {
  std::uint64_t block_bytes = facts.layout.block_bytes();
  for (const CodedFacts& coded : facts.coded) {
    if (coded.block_bytes != 0) block_bytes = std::min(block_bytes, coded.block_bytes);
  }
  const std::uint64_t missing = std::min(facts.believed_missing_tokens, facts.total_tokens);
  return mul_div(block_bytes, missing, facts.layout.block_tokens);
}

std::size_t candidates(const SenderFacts& facts, const DepthLoss& by_depth,
                       std::array<CandidateCost, kMaxCandidates>& out, const char** why) noexcept {
  KVRAIL_ASSERT(why != nullptr && facts.layout.block_tokens > 0);
  *why = "";
  const LossProfile& loss = by_depth.at(facts.total_tokens);
  std::array<CandidateCost, kOffered.size()> found{};
  std::size_t count = 0;
  const auto consider = [&](Medium medium) {
    if (const char* const reason = refusal(facts, loss, medium)) {
      if (**why == '\0') *why = reason;  // the first is of the medium that asks least
      return;
    }
    found[count++] = candidate(facts, loss, medium);
  };
  // The receiver makes a split of one of these and its own compute.
  const auto consider_tails = [&] {
    if ((facts.receiver_accepts & mask_of(Medium::split)) == 0) {
      *why = "the receiver does not accept this medium";
      return;
    }
    for (const Medium medium : kOffered) {
      if (may_be_tail(medium)) consider(medium);
    }
  };
  if (facts.wish != Medium::automatic) {
    const auto among = [&](const auto& media) {
      return std::find(media.begin(), media.end(), facts.wish) != media.end();
    };
    const bool known = among(kOffered) || among(kOnlyWished);
    if (facts.wish == Medium::split) {
      consider_tails();
    } else if (known) {
      consider(facts.wish);
    } else {
      *why = "this medium is not built in";
    }
  } else {
    for (const Medium medium : kOffered) {
      const bool topk_is_offered = count > 0 && found[count - 1].medium == Medium::topk;
      if (medium != Medium::window || !topk_is_offered) consider(medium);
    }
  }
  const auto last = found.begin() + static_cast<std::ptrdiff_t>(count);
  const auto cheaper = [&](const CandidateCost& a, const CandidateCost& b) {
    return guess_ns(facts, a) < guess_ns(facts, b);
  };
  // Insertion keeps equal ones in order; std::stable_sort would take memory from the heap.
  for (auto it = found.begin(); it != last; ++it) std::rotate(std::upper_bound(found.begin(), it, *it, cheaper), it, it + 1);
  static_assert(kOffered.size() - 1 <= kMaxCandidates);  // of topk and window one
  std::copy_n(found.begin(), count, out.begin());
  if (count > 0) *why = "";
  return count;
}

}  // namespace kvrail::scheduler
