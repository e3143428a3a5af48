// The one list of every message's fields, in wire order, used for writing and for reading: so that
// the two cannot drift apart. Private to transport/wire.
//
// `A` is a FieldWriter with const messages or a FieldReader with mutable ones.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kvrail/base/byte_order.h"
#include "transport/wire/codec.h"
#include "transport/wire/messages.h"

namespace kvrail::transport::wire {

class FieldWriter {
 public:
  explicit FieldWriter(std::span<std::byte> out) noexcept : out_(out) {}
  void u8(std::uint8_t v) noexcept { out_.u8(v); }
  void u16(std::uint16_t v) noexcept { out_.u16(v); }
  void u32(std::uint32_t v) noexcept { out_.u32(v); }
  void u64(std::uint64_t v) noexcept { out_.u64(v); }
  void i32(std::int32_t v) noexcept { out_.i32(v); }
  void f32(float v) noexcept { out_.f32(v); }
  void flag(bool v) noexcept { out_.u8(v ? 1 : 0); }
  // A quantity that a writer may have saturated: it travels as the bound.
  void up_to(std::uint64_t limit, std::uint64_t v) noexcept { out_.u64(std::min(v, limit)); }
  template <class E>
  void enumerator(E v, std::uint32_t /*limit*/) noexcept {
    if constexpr (sizeof(E) == 1) {
      out_.u8(static_cast<std::uint8_t>(v));
    } else {
      out_.u16(static_cast<std::uint16_t>(v));
    }
  }
  void text(const Name& v) noexcept {
    const std::size_t length = v.length();
    out_.u8(static_cast<std::uint8_t>(length));
    out_.bytes(std::as_bytes(std::span(v.bytes)).first(length));
  }
  void count(std::uint32_t v, std::size_t /*limit*/) noexcept { out_.u32(v); }
  void count(std::uint8_t v, std::size_t /*limit*/) noexcept { out_.u8(v); }
  // The rest of the message: its length is the frame's.
  void rest(std::span<const std::byte> v, std::size_t /*unit*/) noexcept { out_.bytes(v); }

  [[nodiscard]] std::size_t size() const noexcept { return out_.ok() ? out_.offset() : 0; }

 private:
  ByteWriter out_;
};

// After the first error every read gives zeros, so loops over a refused count do not run on.
class FieldReader {
 public:
  explicit FieldReader(std::span<const std::byte> in) noexcept : in_(in) {}
  void u8(std::uint8_t& v) noexcept { v = in_.u8(); }
  void u16(std::uint16_t& v) noexcept { v = in_.u16(); }
  void u32(std::uint32_t& v) noexcept { v = in_.u32(); }
  void u64(std::uint64_t& v) noexcept { v = in_.u64(); }
  void i32(std::int32_t& v) noexcept { v = in_.i32(); }
  void f32(float& v) noexcept { v = in_.f32(); }
  void up_to(std::uint64_t limit, std::uint64_t& v) noexcept {
    v = in_.u64();
    if (v > limit) refuse(MessageError::bad_value);
  }
  void flag(bool& v) noexcept {
    const std::uint8_t raw = in_.u8();
    if (raw > 1) refuse(MessageError::bad_enum);
    v = raw == 1;
  }
  // Accepts [0, limit).
  template <class E>
  void enumerator(E& v, std::uint32_t limit) noexcept {
    std::uint32_t raw = 0;
    if constexpr (sizeof(E) == 1) {
      raw = in_.u8();
    } else {
      raw = in_.u16();
    }
    if (raw >= limit) {
      refuse(MessageError::bad_enum);
      raw = 0;
    }
    v = static_cast<E>(raw);
  }
  void text(Name& v) noexcept {
    v = Name{};
    const std::size_t length = in_.u8();
    if (length == 0 || length > kMaxNameBytes) {
      refuse(MessageError::bad_name);
      return;
    }
    const std::span<const std::byte> raw = in_.bytes(length);
    for (std::size_t i = 0; i < raw.size(); ++i) {
      const auto c = static_cast<unsigned char>(raw[i]);
      if (c <= 0x20 || c == 0x7F) refuse(MessageError::bad_name);
      v.bytes[i] = static_cast<char>(c);
    }
  }
  void count(std::uint32_t& v, std::size_t limit) noexcept { v = bounded(in_.u32(), limit); }
  void count(std::uint8_t& v, std::size_t limit) noexcept {
    v = static_cast<std::uint8_t>(bounded(in_.u8(), limit));
  }
  void rest(std::span<const std::byte>& v, std::size_t unit) noexcept {
    v = in_.bytes(in_.remaining());
    if (v.size() % unit != 0) refuse(MessageError::bad_count);
  }

  void refuse(MessageError error) noexcept {
    // What follows an end of bytes is read as zeros, so that end is the true reason.
    if (error_ == MessageError::none && in_.ok()) error_ = error;
  }
  [[nodiscard]] MessageError finish() const noexcept {
    if (error_ != MessageError::none) return error_;
    if (!in_.ok()) return MessageError::truncated;
    return in_.done() ? MessageError::none : MessageError::trailing;
  }

 private:
  std::uint32_t bounded(std::uint32_t value, std::size_t limit) noexcept {
    if (value <= limit) return value;
    refuse(MessageError::bad_count);
    return 0;
  }

  ByteReader in_;
  MessageError error_ = MessageError::none;
};

// Bounds that keep a receiver's arithmetic in 64 bits: 2^20 blocks times a block's figure fits.
inline constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 44;
inline constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{1} << 42;
inline constexpr std::uint64_t kMaxBlockNs = std::uint64_t{1} << 40;
inline constexpr std::uint64_t kMaxCostNs = std::uint64_t{1} << 50;
inline constexpr std::uint64_t kMaxRate = std::uint64_t{1} << 50;
inline constexpr std::uint64_t kMaxDurationNs = std::uint64_t{1} << 62;

// M is X for reading and const X for writing.
template <class M, class X>
concept MessageOf = std::is_same_v<std::remove_const_t<M>, X>;

template <class A, class M>
void hash_fields(A& a, M& m) {
  a.u64(m.low);
  a.u64(m.high);
}
template <class A, class M>
void layout_fields(A& a, M& m) {
  hash_fields(a, m.model_id);
  a.u32(m.layers);
  a.u32(m.kv_heads);
  a.u32(m.head_dim);
  a.u32(m.block_tokens);
  a.enumerator(m.dtype, static_cast<std::uint32_t>(Dtype::fp8_e5m2) + 1);
  a.f32(m.rope_base);
  a.f32(m.rope_scale);
}
template <class A, class M>
void lowrank_fields(A& a, M& m) {
  hash_fields(a, m.basis);
  a.u16(m.theta);
}
template <class A, class M>
void lease_fields(A& a, M& m) {
  a.u32(m.slot);
  a.u32(m.generation);
}
template <class A, class M>
void status_fields(A& a, M& m) {
  a.enumerator(m.code, kCodeCount);
  a.enumerator(m.scope, kScopeCount);
  a.i32(m.detail);
}
template <class A, class M>
void medium_field(A& a, M& m) {
  a.enumerator(m, static_cast<std::uint32_t>(kMediumCount));
}
template <class A, class M>
void candidate_fields(A& a, M& m) {
  medium_field(a, m.medium);
  a.up_to(kMaxBytes, m.fixed_bytes);
  a.up_to(kMaxBlockBytes, m.block_bytes);
  a.up_to(kMaxBlockBytes, m.tail_bytes);
  a.up_to(kMaxCostNs, m.wait_ns);
  a.up_to(kMaxBlockNs, m.encode_ns_per_block);
  a.up_to(kMaxRate, m.rate_bytes_per_s);
  a.up_to(kMaxCostNs, m.price_ns);
  a.u32(m.epsilon_ppm);
  medium_field(a, m.values);
  a.u32(m.rows);
  a.u16(m.first_blocks);
  a.u16(m.last_blocks);
}

template <class A, MessageOf<Keepalive> M>
void fields(A& a, M& m) {
  a.u64(m.sequence);
}
template <class A, MessageOf<AgentUp> M>
void fields(A& a, M& m) {
  a.text(m.tenant);
  a.text(m.agent);
  a.u16(m.role);
  a.u32(m.accepted);
  hash_fields(a, m.tokenizer);
  layout_fields(a, m.layout);
  a.up_to(kMaxCostNs, m.compute.prefill_fixed_ns);
  a.up_to(kMaxBlockNs, m.compute.prefill_per_token_ns);
  a.up_to(kMaxBlockNs, m.compute.prefill_quadratic_ns_q20);
  a.up_to(kMaxBlockNs, m.compute.decode_per_token_ns);
  lowrank_fields(a, m.lowrank);
}
template <class A, MessageOf<AgentDown> M>
void fields(A& a, M& m) {
  a.text(m.tenant);
  a.text(m.agent);
}
template <class A, MessageOf<Offer> M>
void fields(A& a, M& m) {
  a.u64(m.transfer);
  a.u64(m.task);
  a.u64(m.fetch_id);
  a.text(m.tenant);
  a.text(m.from_agent);
  a.text(m.to_agent);
  a.text(m.context);
  a.u64(m.version);
  layout_fields(a, m.layout);
  hash_fields(a, m.tokenizer);
  a.u64(m.total_tokens);
  a.u64(m.base_tokens);
  hash_fields(a, m.base_hash);
  a.up_to(kMaxDurationNs, m.remaining_ns);
  a.up_to(kMaxDurationNs, m.age_ns);
  a.u32(m.fidelity_floor_ppm);
  a.u32(m.epsilon_ppm);
  a.u16(m.weight);
  a.u16(m.criticality_milli);
  a.flag(m.critical);
  a.flag(m.background);
  medium_field(a, m.wish);
  a.flag(m.eager);
  a.flag(m.whole_planes);
  a.flag(m.shared);
  lowrank_fields(a, m.lowrank);
  a.count(m.token_count_here, kMaxContextTokens);
  a.count(m.candidate_count, kMaxCandidates);
  for (std::size_t i = 0; i < m.candidate_count; ++i) candidate_fields(a, m.candidates[i]);
  a.rest(m.token_bytes, 4);
}
template <class A, MessageOf<Tokens> M>
void fields(A& a, M& m) {
  a.u64(m.transfer);
  a.u64(m.first);
  a.rest(m.token_bytes, 4);
}
template <class A, MessageOf<Eager> M>
void fields(A& a, M& m) {
  a.u64(m.transfer);
  a.u64(m.digest);
  a.rest(m.bytes, 1);
}
template <class A, MessageOf<Accept> M>
void fields(A& a, M& m) {
  a.u64(m.transfer);
  medium_field(a, m.medium);
  lease_fields(a, m.lease);
  a.up_to(kMaxDurationNs, m.lease_remaining_ns);
  a.up_to(kMaxDurationNs, m.predicted_ns);
  a.u32(m.tail_from_row);
  a.u8(m.first_plane);
  hash_fields(a, m.encodings);
  a.flag(m.tail_first);
  a.count(m.range_count, m.missing.size());
  for (std::size_t i = 0; i < m.range_count; ++i) {
    a.u32(m.missing[i].first);
    a.u32(m.missing[i].count);
  }
}
template <class A, MessageOf<Later> M>
void fields(A& a, M& m) {
  a.u64(m.transfer);
  a.up_to(kMaxDurationNs, m.retry_after_ns);
  a.u64(m.bytes_free);
}
template <class A, MessageOf<Reject> M>
void fields(A& a, M& m) {
  a.u64(m.transfer);
  a.u64(m.fetch_id);
  status_fields(a, m.status);
}
template <class A, MessageOf<Done> M>
void fields(A& a, M& m) {
  a.u64(m.transfer);
  status_fields(a, m.status);
  medium_field(a, m.medium);
  a.u64(m.bytes);
  a.up_to(kMaxDurationNs, m.observed_ns);
}
template <class A, MessageOf<Cancel> M>
void fields(A& a, M& m) {
  a.u64(m.transfer);
  status_fields(a, m.status);
}
template <class A, MessageOf<Query> M>
void fields(A& a, M& m) {
  a.u64(m.transfer);
  a.u64(m.incarnation);
}
template <class A, MessageOf<Outcome> M>
void fields(A& a, M& m) {
  a.u64(m.transfer);
  a.enumerator(m.state, static_cast<std::uint32_t>(TransferState::ended) + 1);
  status_fields(a, m.status);
  lease_fields(a, m.lease);
  a.count(m.range_count, m.missing.size());
  for (std::size_t i = 0; i < m.range_count; ++i) {
    a.u64(m.missing[i].offset);
    a.u64(m.missing[i].bytes);
  }
}
template <class A, MessageOf<Fetch> M>
void fields(A& a, M& m) {
  a.u64(m.fetch_id);
  a.u64(m.task);
  a.text(m.tenant);
  a.text(m.requester);
  a.text(m.owner);
  a.text(m.context);
  a.u64(m.version);
  a.up_to(kMaxDurationNs, m.remaining_ns);
  a.u32(m.fidelity_floor_ppm);
  a.flag(m.critical);
  a.flag(m.background);
  medium_field(a, m.wish);
}
template <class A, MessageOf<State> M>
void fields(A& a, M& m) {
  a.u64(m.receive_bytes_free);
  a.u64(m.receive_bytes_total);
  a.up_to(kMaxCostNs, m.nic_backlog_ns);
  a.up_to(kMaxCostNs, m.nic_price_ppm);
  a.up_to(kMaxCostNs, m.compute_price_ppm);
}
template <class A, MessageOf<Summary> M>
void fields(A& a, M& m) {
  a.u64(m.transfer);
  a.u8(m.kind);
  a.rest(m.bytes, 1);
}
template <class A, MessageOf<Encodings> M>
void fields(A& a, M& m) {
  a.u64(m.transfer);
  a.u32(m.first);
  a.u32(m.count);
  a.rest(m.ids, 16);
}

template <class A, MessageOf<Workflow> M>
void fields(A& a, M& m) {
  a.text(m.tenant);
  a.text(m.workflow);
  a.count(m.step_count, m.steps.size());
  for (std::size_t i = 0; i < m.step_count; ++i) {
    a.text(m.steps[i].agent);
    a.up_to(kMaxCostNs, m.steps[i].duration_ns);
  }
  a.count(m.edge_count, m.edges.size());
  for (std::size_t i = 0; i < m.edge_count; ++i) {
    a.u8(m.edges[i].from);
    a.u8(m.edges[i].to);
  }
}
template <class A, MessageOf<TaskNotice> M>
void fields(A& a, M& m) {
  a.u64(m.task);
  a.text(m.tenant);
  a.text(m.workflow);
  a.up_to(kMaxDurationNs, m.remaining_ns);
}
template <class A, MessageOf<TurnNotice> M>
void fields(A& a, M& m) {
  a.text(m.tenant);
  a.text(m.workflow);
  a.text(m.agent);
  a.up_to(kMaxDurationNs, m.in_ns);
  a.up_to(kMaxDurationNs, m.spread_ns);
  a.u32(m.probability_ppm);
}

}  // namespace kvrail::transport::wire
