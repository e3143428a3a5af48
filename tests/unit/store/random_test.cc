// Random sequences of operations against a model that knows contents only: which tokens and which
// rows a version must have. After each step the store audits its own books.
#include <map>
#include <set>

#include "kvrail/base/prng.h"
#include "tests/unit/store/fixture.h"

using namespace kvrail;
using namespace kvrail::engine;
using namespace kvrail::engine::testing;

namespace {

// Rows are filled with a value that follows from the tokens up to and with the row, so that whoever
// wrote them, equal prefixes have equal rows and any mix-up shows.
std::uint8_t value_at(const std::vector<TokenId>& tokens, std::size_t position) {
  std::uint64_t hash = 1469598103934665603ULL;
  for (std::size_t i = 0; i <= position; ++i) {
    hash = (hash ^ tokens[i]) * 1099511628211ULL;
  }
  return static_cast<std::uint8_t>(hash >> 40);
}

struct ModelVersion {
  std::vector<TokenId> tokens;
  bool kv = true;
};

struct ModelAgent {
  AgentHandle handle;
  std::string who;
  std::vector<Extent> slots;  // of one slot each, writable as far as is known
  std::map<std::string, std::vector<TokenId>> newest;  // per own context
  std::map<std::string, std::vector<Extent>> slots_of;
  std::vector<std::pair<DeliveryHandle, VersionHandle>> deliveries;
};

class Run {
 public:
  explicit Run(std::uint64_t seed) : prng_(seed), f_(options()) {
    for (std::uint32_t i = 0; i < 3; ++i) {
      attach(i);
    }
  }

  void steps(int count) {
    for (int i = 0; i < count; ++i) {
      f_.clock.advance(static_cast<TimeNs>(prng_.uniform(kSecondNs)));
      step();
      f_.store->check();
      verify_some();
    }
  }

 private:
  static StoreOptions options() {
    StoreOptions out = small_options();
    out.receive_arena_bytes = 128 * 1024;
    out.max_blocks = 128;
    out.max_versions = 24;
    out.context_ttl_ns = 40 * kSecondNs;
    return out;
  }

  void attach(std::uint32_t index) {
    agents_[index] = ModelAgent{};
    agents_[index].who = "agent" + std::to_string(index);
    agents_[index].handle = f_.attach(index, agents_[index].who);
  }

  // Few first tokens and a growing body make shared prefixes, tails and forks common.
  std::vector<TokenId> some_tokens() {
    std::vector<TokenId> out;
    if (!pool_.empty() && prng_.chance(0.75)) {
      out = pool_[prng_.uniform(pool_.size())];
      if (prng_.chance(0.3)) {
        out.resize(1 + prng_.uniform(out.size()));
      }
    }
    const std::size_t more = out.empty() ? prng_.between(1, 40) : prng_.uniform(30);
    for (std::size_t i = 0; i < more && out.size() < 100; ++i) {
      out.push_back(static_cast<TokenId>(prng_.uniform(3)));
    }
    pool_.push_back(out);
    if (pool_.size() > 20) {
      pool_.erase(pool_.begin() + static_cast<std::ptrdiff_t>(prng_.uniform(pool_.size())));
    }
    return out;
  }
  std::string some_name() { return std::string("c") + std::to_string(prng_.uniform(3)); }
  ModelAgent& some_agent() { return agents_[prng_.uniform(3)]; }

  void step() {
    switch (prng_.uniform(11)) {
      case 0:
      case 1:
        commit_new();
        break;
      case 2:
      case 3:
        commit_grown();
        break;
      case 4:
      case 5:
        stage_one();
        break;
      case 6:
        finish_one();
        break;
      case 7:
        deliver_one();
        break;
      case 8:
        release_one();
        break;
      case 9:
        drop_or_die();
        break;
      default:
        tokens_or_housekeep();
        break;
    }
  }

  void write_row(const Extent& slot, std::uint32_t row, std::uint8_t value) {
    for (std::uint32_t half = 0; half < 2 * f_.layout.layers; ++half) {
      std::memset(f_.at(slot) + f_.layout.row_offset(half / 2, half % 2, row), value,
                  f_.layout.row_bytes());
    }
  }
  void write_rows(const std::vector<Extent>& slots, const std::vector<TokenId>& tokens,
                  std::size_t from) {
    for (std::size_t i = from; i < tokens.size(); ++i) {
      write_row(slots[i / f_.layout.block_tokens],
                static_cast<std::uint32_t>(i % f_.layout.block_tokens), value_at(tokens, i));
    }
  }
  bool add_slots(ModelAgent& agent, std::vector<Extent>& slots, std::size_t tokens) {
    while (slots.size() * f_.layout.block_tokens < tokens) {
      const auto extent = f_.store->allocate(agent.handle, 1);
      if (!extent.ok()) {
        CHECK(extent.status().code == Code::out_of_capacity);
        return false;
      }
      slots.push_back(*extent);
    }
    return true;
  }
  void free_slots(ModelAgent& agent, const std::vector<Extent>& slots) {
    for (const Extent& slot : slots) {
      REQUIRE(f_.store->free_blocks(agent.handle, slot).ok());  // Committed ones are left alone.
    }
  }

  void record(ModelAgent& agent, const std::string& context, const Result<VersionHandle>& version,
              const std::vector<TokenId>& tokens) {
    const VersionView view = f_.view(*version);
    REQUIRE(view.owner == name(agent.who));
    REQUIRE(view.context == name(context));
    model_[version->packed()] = {tokens, true};
  }

  static bool is_full(const Status& status) {
    return status.code == Code::out_of_capacity || status.code == Code::out_of_memory ||
           status.code == Code::quota_exceeded;
  }

  // Others go on between the steps.
  void between_steps() {
    if (prng_.chance(0.2)) {
      f_.store->housekeep(f_.clock.now_ns(), 1'000);
    }
    if (prng_.chance(0.05)) {
      f_.store->check();
    }
  }
  Result<StagingHandle> stage_in_steps(const StageRequest& request) {
    const auto staging = f_.store->begin_stage(request);
    if (!staging.ok()) {
      return staging;
    }
    for (;;) {
      std::uint64_t budget = prng_.between(1, 3);
      NoAllocScope worker;
      if (const auto status = f_.store->advance(*staging, budget)) {
        return status->ok() ? staging : Result<StagingHandle>(*status);
      }
      const AllowAllocScope others;
      between_steps();
    }
  }
  Result<VersionHandle> commit_in_steps(ModelAgent& agent, const std::string& context,
                                        const std::vector<TokenId>& tokens,
                                        const std::vector<Extent>& slots) {
    const auto commit = f_.store->begin_commit({agent.handle, name(context), tokens, slots, 0, {}});
    if (!commit.ok()) {
      return commit.status();
    }
    for (;;) {
      std::uint64_t budget = prng_.between(1, 3);
      NoAllocScope worker;
      if (auto version = f_.store->advance(*commit, budget)) {
        return *version;
      }
      const AllowAllocScope others;
      between_steps();
    }
  }

  void commit_new() {
    ModelAgent& agent = some_agent();
    const std::string context = some_name();
    const auto tokens = some_tokens();
    drop(agent, context);
    std::vector<Extent> slots;
    if (!add_slots(agent, slots, tokens.size())) {
      free_slots(agent, slots);
      return;
    }
    write_rows(slots, tokens, 0);
    const auto version = prng_.chance(0.5) ? f_.commit(agent.handle, context, tokens, slots)
                                           : commit_in_steps(agent, context, tokens, slots);
    if (!version.ok()) {
      REQUIRE(is_full(version.status()));
      free_slots(agent, slots);
      return;
    }
    record(agent, context, version, tokens);
    agent.newest[context] = tokens;
    agent.slots_of[context] = slots;
  }

  void commit_grown() {
    ModelAgent& agent = some_agent();
    if (agent.newest.empty()) {
      return;
    }
    const std::string context = agent.newest.begin()->first;
    auto tokens = agent.newest[context];
    auto& slots = agent.slots_of[context];
    const std::size_t before = tokens.size();
    for (std::size_t i = 1 + prng_.uniform(20); i > 0; --i) {
      tokens.push_back(static_cast<TokenId>(prng_.uniform(3)));
    }
    if (tokens.size() > 120 || !add_slots(agent, slots, tokens.size())) {
      return;
    }
    write_rows(slots, tokens, before);
    const auto version = f_.commit(agent.handle, context, tokens, slots);
    if (!version.ok()) {
      CAPTURE(std::string(text(static_cast<StoreRule>(version.status().detail))));
      REQUIRE(is_full(version.status()));
      return;
    }
    record(agent, context, version, tokens);
    agent.newest[context] = tokens;
  }

  void stage_one() {
    const auto tokens = some_tokens();
    static constexpr Medium kMedia[] = {Medium::full,     Medium::full,  Medium::int8, Medium::int4,
                                        Medium::lossless, Medium::exact, Medium::window};
    StageRequest request = f_.request("far", some_name(), tokens, prng_.between(1, 9),
                                      kMedia[prng_.uniform(std::size(kMedia))]);
    request.epsilon_ppm = prng_.chance(0.3) ? 500 : 0;
    request.build_on_planes = prng_.chance(0.5);
    request.window_first_block =
        static_cast<std::uint32_t>((tokens.size() - 1) / f_.layout.block_tokens);
    if (staged_.empty()) {
      f_.kept_tokens.clear();
      request.tokens = f_.kept_tokens.emplace_back(tokens);
    }
    const auto staging = prng_.chance(0.5) ? f_.stage(request) : stage_in_steps(request);
    if (!staging.ok()) {
      REQUIRE(is_full(staging.status()));
      return;
    }
    staged_.emplace_back(*staging, tokens);
    if (prng_.chance(0.7)) {
      fill_staged(*staging, tokens);
      finish(staged_.size() - 1, true);
    }
  }

  void fill_staged(StagingHandle staging, const std::vector<TokenId>& tokens) {
    Store::StagingView view;
    REQUIRE(f_.store->view(staging, view));
    for (std::uint32_t i = 0; i < view.block_count; ++i) {
      if (view.missing[i] == 0) {
        continue;
      }
      const BlockView block = f_.store->block(view.blocks[i]);
      const std::uint32_t from = i == view.tail_block ? view.tail_from_row : 0;
      for (std::uint32_t row = from; row < block.tokens; ++row) {
        write_row({block.arena, 1, block.offset}, row,
                  value_at(tokens, i * f_.layout.block_tokens + row));
      }
      for (const PlaneView& plane : block.planes) {
        if (plane.data != nullptr) std::memset(plane.data, static_cast<int>(i), plane.bytes);
      }
    }
  }

  void finish_one() {
    if (staged_.empty()) {
      return;
    }
    const std::size_t which = prng_.uniform(staged_.size());
    const bool publish = prng_.chance(0.6);
    if (publish) {
      fill_staged(staged_[which].first, staged_[which].second);
    }
    finish(which, publish);
  }
  void finish(std::size_t which, bool publish) {
    const auto [staging, tokens] = staged_[which];
    staged_.erase(staged_.begin() + static_cast<std::ptrdiff_t>(which));
    if (!publish) {
      f_.store->abandon(staging);
      return;
    }
    const auto version = f_.publish(staging);
    REQUIRE(version.ok());
    model_[version->packed()] = {tokens, true};
    if (prng_.chance(0.5)) {
      deliver(some_agent(), *version);
    }
  }

  void deliver(ModelAgent& agent, VersionHandle version) {
    const DeliveryHandle delivery = f_.store->deliver(agent.handle, version);
    if (delivery) {
      agent.deliveries.emplace_back(delivery, version);
    }
  }
  void deliver_one() {
    ModelAgent& owner = some_agent();
    const VersionHandle version = f_.store->find_for(owner.handle, name(some_name()), 0);
    if (version) {
      deliver(some_agent(), version);
    }
  }
  void release_one() {
    ModelAgent& agent = some_agent();
    if (agent.deliveries.empty()) {
      return;
    }
    const std::size_t which = prng_.uniform(agent.deliveries.size());
    CHECK_FALSE(f_.store->release(agents_[(agent.handle.index + 1) % 3].handle,
                                  agent.deliveries[which].first));
    REQUIRE(f_.store->release(agent.handle, agent.deliveries[which].first));
    agent.deliveries.erase(agent.deliveries.begin() + static_cast<std::ptrdiff_t>(which));
  }

  void drop(ModelAgent& agent, const std::string& context) {
    const auto slots = agent.slots_of.find(context);
    if (slots != agent.slots_of.end()) {
      free_slots(agent, slots->second);  // Those that were never needed; before the drop.
      agent.slots_of.erase(slots);
    }
    f_.store->drop_context(agent.handle, name(context));
    agent.newest.erase(context);
    REQUIRE_FALSE(f_.store->find(f_.tenant, name(agent.who), name(context), 0).valid());
  }
  void drop_or_die() {
    ModelAgent& agent = some_agent();
    if (prng_.chance(0.7)) {
      drop(agent, some_name());
      return;
    }
    const std::uint32_t index = agent.handle.index;
    f_.store->remove_agent(agent.handle);
    f_.store->check();
    static_cast<void>(f_.store->take_retired());
    attach(index);
  }

  // A sender's use of planes: attached, perhaps written, released.
  void use_planes() {
    const VersionHandle version = f_.store->find_for(some_agent().handle, name(some_name()), 0);
    if (!version) {
      return;
    }
    f_.store->pin(version);
    VersionView view;
    REQUIRE(f_.store->view(version, view));
    static constexpr Medium kMedia[] = {Medium::int8, Medium::int4, Medium::lossless, Medium::exact};
    const Coding coding = f_.coding(kMedia[prng_.uniform(std::size(kMedia))]);
    std::vector<BlockHandle> attached;
    for (const BlockHandle block : view.blocks) {
      if (block && f_.store->attach_planes(block, coding)) {
        attached.push_back(block);
      }
    }
    f_.store->check();
    for (const BlockHandle block : attached) {
      if (prng_.chance(0.5)) {
        f_.store->planes_written(block, coding.planes(), f_.layout.layers);
      }
      f_.store->release_planes(block);
    }
    f_.store->unpin(version);
  }

  void tokens_or_housekeep() {
    if (prng_.chance(0.3)) {
      use_planes();
      return;
    }
    if (prng_.chance(0.3)) {
      const auto tokens = some_tokens();
      const auto version =
          f_.store->publish_tokens(f_.tenant, name("far"), name(some_name()), prng_.between(1, 9),
                                   f_.layout, Medium::tokens, tokens);
      if (version.ok()) {
        model_[version->packed()] = {tokens, false};
      } else {
        REQUIRE(is_full(version.status()));
      }
      return;
    }
    NoAllocScope worker;
    f_.store->housekeep(f_.clock.now_ns(), prng_.uniform(100'000));
  }

  // Everything that is delivered, and everything that can be found, has the bytes of its tokens.
  void verify_some() {
    for (const ModelAgent& agent : agents_) {
      for (const auto& [delivery, version] : agent.deliveries) {
        verify(version);
      }
      for (const auto& [context, tokens] : agent.newest) {
        const VersionHandle newest = f_.store->find(f_.tenant, name(agent.who), name(context), 0);
        REQUIRE(newest.valid());
        REQUIRE(model_.at(newest.packed()).tokens == tokens);
        verify(newest);
      }
    }
    for (int i = 0; i < 3; ++i) {
      const VersionHandle received =
          f_.store->find(f_.tenant, name("far"), name(std::string("c") + std::to_string(i)), 0);
      if (received) {
        verify(received);
      }
    }
  }

  void verify(VersionHandle handle) {
    const ModelVersion& expected = model_.at(handle.packed());
    VersionView view;
    REQUIRE(f_.store->view(handle, view));
    REQUIRE(std::equal(view.tokens.begin(), view.tokens.end(), expected.tokens.begin(),
                       expected.tokens.end()));
    REQUIRE(view.blocks.empty() == !expected.kv);
    std::vector<Hash128> hashes((expected.tokens.size() + f_.layout.block_tokens - 1) /
                                f_.layout.block_tokens);
    f_.store->hash_chain(f_.tenant, f_.layout, expected.tokens, hashes);
    REQUIRE(std::equal(hashes.begin(), hashes.end(), view.hashes.begin(), view.hashes.end()));
    for (std::size_t i = 0; i < view.blocks.size(); ++i) {
      if (!view.blocks[i]) {
        REQUIRE(view.medium == Medium::window);
        continue;
      }
      const std::uint32_t rows = f_.store->block(view.blocks[i]).tokens;
      for (std::uint32_t row = 0; row < rows; ++row) {
        REQUIRE(f_.row_value(view.blocks[i], row) ==
                value_at(expected.tokens, i * f_.layout.block_tokens + row));
      }
    }
  }

  Prng prng_;
  Fixture f_;
  ModelAgent agents_[3];
  std::vector<std::vector<TokenId>> pool_;
  std::vector<std::pair<StagingHandle, std::vector<TokenId>>> staged_;
  std::map<std::uint64_t, ModelVersion> model_;
};

}  // namespace

TEST_CASE("random operations keep contents, atomicity and the books") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed);
    Run(seed).steps(250);
  }
}
