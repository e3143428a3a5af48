// Any text as a configuration: it is read or refused with one line, and what is read is in range.
#include <cstdint>
#include <string_view>

#include "engine/config/config.h"
#include "kvrail/base/assert.h"

using namespace kvrail;

namespace {

void check_refusal(const Error& error) {
  KVRAIL_ASSERT(!error.message.empty());
  KVRAIL_ASSERT(error.status.code != Code::ok);
}

void check_units(std::string_view text) {
  if (const auto bytes = engine::parse_bytes(text); bytes.ok()) KVRAIL_ASSERT(bytes.value() > 0);
  if (const auto time = engine::parse_duration(text); time.ok()) KVRAIL_ASSERT(time.value() > 0);
  if (const auto rate = engine::parse_rate(text); rate.ok()) KVRAIL_ASSERT(rate.value() > 0);
}

// Plain bytes rarely get past the parser, so half of the inputs become the value of a known key.
std::string as_value(std::string_view text, std::uint8_t which) {
  static constexpr const char* kForms[] = {
      "[runtime]\nslice = \"%\"\n",  "[memory]\nreceive_arena = \"%\"\n", "[tcp]\nlisten = \"%\"\n",
      "[tcp]\npacing = \"%\"\n",     "[node]\nid = %\n",                  "[[peer]]\naddress = \"%\"\n",
      "[attach]\nsocket = \"%\"\n", "[transfer]\nmedium = \"%\"\n",      "[%]\n",
  };
  std::string form = kForms[which % std::size(kForms)];
  const std::size_t at = form.find('%');
  return form.replace(at, 1, text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  const std::string whole = data[0] % 2 == 0 ? std::string(text) : as_value(text, data[0] / 2);
  const auto config = engine::parse_config(whole, "fuzz");
  if (config.ok()) {
    KVRAIL_ASSERT(engine::validate(config.value()).ok());
    KVRAIL_ASSERT(config->slice_ns >= 5 * kMillisecondNs && config->slice_ns <= 20 * kMillisecondNs);
    KVRAIL_ASSERT(config->receive_arena_bytes >= 1 << 20);
  } else {
    check_refusal(config.error());
  }
  check_units(text);
  return 0;
}
