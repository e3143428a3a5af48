// Any text as a configuration: it is read or refused with one line, and what is read is in range.
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/config/config.h"
#include "kvrail/base/assert.h"
#include "tests/fuzz/seeds.h"

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

std::vector<kvrail::test::FuzzInput> kvrail::test::fuzz_seeds() {
  static constexpr std::string_view kFiles[] = {
      "[node]\nid = 1\n\n[tcp]\nlisten = \"10.0.0.1:7400\"\npsk_file = \"/etc/kvrail/key\"\n\n[[peer]]\naddress = "
      "\"10.0.0.2:7400\"\n\n[[peer]]\naddress = \"[fd00::3]:7400\"\n",
      "[runtime]\nmode = \"dedicated\"\nidle = \"spin\"\nspin = \"20 us\"\ncore = 0\nlane_core = 1\nslice = \"5 ms\"\n"
      "drain = \"10 s\"\n[transfer]\nmedium = \"int8\"\nintegrity = false\neager_limit = \"16 KiB\"\nkeepalive = \"1 s\"\n",
      "[attach]\nsocket = \"/tmp/a.sock\"\nmax_agents = 2\nany_uid = true\n[[attach.tenant]]\nuid = 1000\nname = \"red\"\n",
      "[memory]\nreceive_arena = \"1 GiB\"\nagent_arena = \"64 MiB\"\ntables = \"16 MiB\"\nmax_blocks = 1024\nlock = true\n"
      "hugepages = true\n",
      "[tcp]\npacing = \"1 Gbit/s\"\nrate_hint = \"100 MB/s\"\ncongestion = \"cubic\"\nforce_epoll = true\ninsecure = true\n",
      "[shm]\nlisten = \"/tmp/b.sock\"\n[[peer]]\naddress = \"/tmp/b.sock\"\ntransport = \"shm\"\n[log]\nlevel = \"debug\"\n",
      "[node]\nid = 1\nid = 2\n",
      "[node\n",
      "peer = 3\n",
      "[[peer]]\naddress = 7\n",
      "a = { b = [1, { c = \"x\" }], d = 1979-05-27T07:32:00Z }\n",
      "[runtime]\nslice = 10\n",
  };
  static constexpr std::string_view kValues[] = {
      "10 ms",  "64 MiB", "127.0.0.1:7400", "1 Gbit/s",  "9223372036854775807",      "[::1]:7400",
      "tokens", "1e30 B", "host:",          "2605:340",  "18446744073709551615 TiB", "\\u0000",
  };
  std::vector<FuzzInput> seeds;
  const auto add = [&seeds](std::uint8_t kind, std::string_view text) {
    FuzzInput input{kind};
    input.insert(input.end(), text.begin(), text.end());
    seeds.push_back(std::move(input));
  };
  for (const std::string_view file : kFiles) add(0, file);
  // An odd first byte makes the rest the value of a known key, its half says of which.
  for (std::uint8_t i = 0; i < std::size(kValues); ++i) add(static_cast<std::uint8_t>(2 * (i % 9) + 1), kValues[i]);
  return seeds;
}
