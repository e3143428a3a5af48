// The trained weights, loaded once for all tests of this binary.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "kvrail/base/assert.h"
#include "perf/model/facts.h"
#include "perf/model/model.h"
#include "perf/model/session.h"

namespace kvrail::model {

inline const Model& recall_model() {
  static const Result<Model> model = Model::load(KVRAIL_MODEL_WEIGHTS);
  KVRAIL_ASSERT_MSG(model.ok(), "the weights that the repository holds can be loaded");
  return *model;
}

inline const FactWorld& recall_world() {
  static const Result<FactWorld> world = FactWorld::of(recall_model());
  KVRAIL_ASSERT(world.ok());
  return *world;
}

/// All of a session's KV as consecutive block slots.
inline std::vector<std::byte> exported(const Session& session, const Layout& layout) {
  const std::uint32_t step = layout.block_tokens;
  const std::uint32_t blocks = (session.length() + step - 1) / step;
  std::vector<std::byte> bytes(blocks * layout.block_bytes());
  for (std::uint32_t i = 0; i < blocks; ++i) {
    const std::uint32_t count = std::min(step, session.length() - i * step);
    const auto slot = std::span(bytes).subspan(i * layout.block_bytes(), layout.block_bytes());
    KVRAIL_ASSERT(session.export_kv(layout, i * step, count, slot).ok());
  }
  return bytes;
}

/// Fills a session from what exported() gave.
inline void import_all(Session& session, const Layout& layout, std::span<const std::byte> bytes,
                       std::uint32_t length) {
  const std::uint32_t step = layout.block_tokens;
  for (std::uint32_t first = 0; first < length; first += step) {
    const auto slot = bytes.subspan(first / step * layout.block_bytes(), layout.block_bytes());
    KVRAIL_ASSERT(session.import_kv(layout, first, std::min(step, length - first), slot).ok());
  }
}

}  // namespace kvrail::model
