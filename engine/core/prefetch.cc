// What agents say they will need: blocks of it that left memory come back from the tier in time, and are kept until they
// are used or the time has passed. When what starts is scheduler/prefetch.h's to say.
#include <algorithm>

#include "engine/core/node_core.h"

namespace kvrail::engine {
namespace {

constexpr TimeNs kLookNs = 50 * kMillisecondNs;  // for hints whose time has passed

std::uint64_t context_key(TenantHandle tenant, const Name& owner, const Name& context) noexcept {
  return mix_bits(codec::hash_of(owner.view()).low ^ mix_bits(codec::hash_of(context.view()).low ^ tenant.packed()));
}

}  // namespace

Status Node::Core::will_need(AgentHandle handle, const Name& owner, const Name& context, std::int64_t in_ns,
                             std::uint32_t probability_ppm) noexcept {
  const LocalAgent* asker = agent(handle);
  if (asker == nullptr) return Status{Code::not_found};
  if (in_ns < 0 || probability_ppm > 1'000'000) return Status{Code::invalid_argument};
  if (probability_ppm == 0) {
    drop_expected(plan_.cancel(handle.packed(), context_key(asker->tenant, owner, context)));
    return Status{};
  }
  return expect_use(handle, *asker, {owner, context, in_ns, 0, probability_ppm, false});
}

Status Node::Core::expect_use(AgentHandle handle, const LocalAgent& asker, const Hint& hint) noexcept {
  VersionView view;
  const VersionHandle version = store_->find(asker.tenant, hint.owner, hint.context, 0);
  if (!version.valid() || !store_->view(version, view)) return Status{Code::not_found};
  if (tier_ == nullptr) return Status{};  // what is here stays here or is gone
  const std::uint64_t key = context_key(asker.tenant, hint.owner, hint.context);
  const std::uint64_t bytes = view.hashes.size() * view.layout.block_bytes();
  Handle<Expected> known = find_expected(handle.packed(), key);
  // What an agent said itself is better known than what was learned.
  if (known.valid() && hint.learned && !expected_.get(known)->learned && now_ < expected_.get(known)->over_ns) return Status{};
  if (!known.valid() && expected_.full() && !hint.learned) drop_a_learned_one();
  if (!known.valid()) known = expected_.try_emplace();
  if (!known.valid()) return Status{Code::out_of_capacity};
  Expected& expected = *expected_.get(known);
  expected.agent = handle.packed();
  expected.key = key;
  expected.tenant = asker.tenant;
  expected.agent_name = asker.info.name;
  expected.owner = hint.owner;
  expected.context = hint.context;
  expected.learned = hint.learned;
  expected.when_ns = add_saturating(now_, hint.in_ns);
  expected.over_ns = add_saturating(expected.when_ns, scheduler::ValueIndex::grace_ns(hint.in_ns, hint.spread_ns));
  expected.probability_ppm = hint.probability_ppm;
  store_->expect(version, hint.probability_ppm, expected.when_ns);
  const scheduler::PrefetchHint plan{handle.packed(), key, hint.probability_ppm, expected.when_ns, tier_->restore_ns(bytes),
                                     bytes, hint.spread_ns};
  if (plan_.expect(plan, now_)) return Status{};
  if (!expected.pinned.valid() && !expected.running) expected_.erase(known);
  return Status{Code::out_of_capacity};
}

// One that waits or lies here makes room for what an agent says.
void Node::Core::drop_a_learned_one() noexcept {
  Handle<Expected> goes;
  expected_.for_each([&](Handle<Expected> handle, const Expected& expected) {
    if (expected.learned && !expected.running) goes = handle;
  });
  if (!goes.valid()) return;
  const Expected& expected = *expected_.get(goes);
  drop_expected(plan_.cancel(expected.agent, expected.key));
}

Handle<Expected> Node::Core::find_expected(std::uint64_t of, std::uint64_t key) noexcept {
  Handle<Expected> found;
  expected_.for_each([&](Handle<Expected> handle, const Expected& expected) {
    if (expected.agent == of && expected.key == key) found = handle;
  });
  return found;
}

void Node::Core::drop_expected(const scheduler::PrefetchPlan::Item& item) noexcept {
  if (item.step == scheduler::PrefetchPlan::Step::none) return;
  const Handle<Expected> handle = find_expected(item.hint.agent, item.hint.context);
  Expected* expected = expected_.get(handle);
  if (expected == nullptr) return;
  store_->unpin(expected->pinned);
  store_->expect_no_more(store_->find(expected->tenant, expected->owner, expected->context, 0));
  expected_.erase(handle);  // a restore that runs ends for nobody
}

void Node::Core::run_prefetch() noexcept {
  if (plan_.size() == 0) return;
  while (const auto over = plan_.expire(now_)) drop_expected(*over);
  if (now_ >= next_expected_look_ns_) drop_overdue();
  // Nothing has to go for it but what can be had again as easily.
  scheduler::PrefetchPlan::Room room;
  room.free_bytes = store_->room_bytes();
  while (const auto item = plan_.next(now_, room)) {
    room.free_bytes -= std::min(room.free_bytes, item->hint.bytes);
    start_prefetch(*item);
  }
}

// What nobody came for: the plan would wait for ever, but its pin keeps others out.
void Node::Core::drop_overdue() noexcept {
  next_expected_look_ns_ = now_ + kLookNs;
  expected_.for_each([&](Handle<Expected>, const Expected& expected) {
    if (expected.pinned.valid() && now_ >= expected.over_ns) drop_expected(plan_.cancel(expected.agent, expected.key));
  });
}

void Node::Core::start_prefetch(const scheduler::PrefetchPlan::Item& item) noexcept {
  const Handle<Expected> handle = find_expected(item.hint.agent, item.hint.context);
  Expected* expected = expected_.get(handle);
  if (expected == nullptr) return plan_.lost(item.id);
  VersionView view;
  const VersionHandle version = store_->find(expected->tenant, expected->owner, expected->context, 0);
  const bool here = version.valid() && store_->view(version, view);
  expected->item = item.id;
  if (here && !view.stub) {  // all that is to be done is that it stays
    store_->pin(version);
    expected->pinned = version;
    return plan_.arrived(item.id);
  }
  const Handle<Restore> restore = here ? restore_of(version, view) : Handle<Restore>{};
  if (!restore.valid()) {
    plan_.lost(item.id);
    expected_.erase(handle);
    return;
  }
  expected->running = true;
  expected->restore = restore;
  ++counters_.prefetches;
}

// The version, if there is one, is pinned by the caller.
void Node::Core::prefetched(Handle<Restore> restore, VersionHandle version) noexcept {
  expected_.for_each([&](Handle<Expected> handle, Expected& expected) {
    if (!expected.running || expected.restore != restore) return;
    expected.running = false;
    if (!version.valid()) {
      plan_.lost(expected.item);
      expected_.erase(handle);
      return;
    }
    store_->pin(version);
    expected.pinned = version;
    plan_.arrived(expected.item);
  });
}

// Called when the agent has, or will have, a pin of its own.
void Node::Core::note_used(AgentHandle handle, TenantHandle tenant, const Name& owner, const Name& context) noexcept {
  if (plan_.size() == 0) return;
  drop_expected(plan_.used(handle.packed(), context_key(tenant, owner, context)));
}

void Node::Core::drop_expected_of(AgentHandle handle) noexcept {
  expected_.for_each([&](Handle<Expected>, const Expected& expected) {
    if (expected.agent == handle.packed()) drop_expected(plan_.cancel(expected.agent, expected.key));
  });
}

TimeNs Node::Core::prefetch_deadline() const noexcept {
  return plan_.size() == 0 ? kNever : std::min(std::max(plan_.next_start_ns(), now_ + kMillisecondNs), now_ + kLookNs);
}

void Node::Core::show_prefetch(StatusData& data) noexcept {
  const scheduler::PrefetchPlan::Counters& plan = plan_.counters();
  data.prefetch = {plan.started_bytes, plan.used_bytes, plan.wasted_bytes, plan.used, plan.late, plan.wasted};
  data.expected_count = 0;
  expected_.for_each([&](Handle<Expected>, const Expected& expected) {
    if (data.expected_count == kStatusExpected) return;
    const StatusExpected::Step step = expected.running           ? StatusExpected::Step::coming
                                      : expected.pinned.valid() ? StatusExpected::Step::here
                                                                : StatusExpected::Step::waiting;
    data.expected[data.expected_count++] = {expected.agent_name, expected.owner, expected.context, expected.when_ns - now_,
                                            expected.probability_ppm, step, {}};
  });
}

}  // namespace kvrail::engine
