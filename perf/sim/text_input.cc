#include "perf/sim/text_input.h"

#include <lzma.h>

#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace kvrail::simulation {
namespace {

constexpr std::size_t kMostText = std::size_t{1} << 30;
constexpr std::uint64_t kMostDecoderMemory = std::uint64_t{256} << 20;

Error file_error(const std::string& path, const std::string& what) {
  return Error{{Code::invalid_argument}, path + ": " + what};
}

class Decoder {
 public:
  Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder() { lzma_end(&stream_); }
  [[nodiscard]] bool begin() {
    return lzma_stream_decoder(&stream_, kMostDecoderMemory, LZMA_CONCATENATED) == LZMA_OK;
  }
  // nullptr when all went well.
  [[nodiscard]] const char* run(const std::string& packed, std::string& text) {
    std::array<char, 1 << 16> piece;
    stream_.next_in = reinterpret_cast<const std::uint8_t*>(packed.data());
    stream_.avail_in = packed.size();
    for (lzma_ret state = LZMA_OK; state != LZMA_STREAM_END;) {
      stream_.next_out = reinterpret_cast<std::uint8_t*>(piece.data());
      stream_.avail_out = piece.size();
      state = lzma_code(&stream_, LZMA_FINISH);
      if (state == LZMA_BUF_ERROR) return "ends too early for xz data";
      if (state != LZMA_OK && state != LZMA_STREAM_END) return "is not xz data, or is damaged";
      text.append(piece.data(), piece.size() - stream_.avail_out);
      if (text.size() > kMostText) return "holds more than 1 GiB of text";
    }
    return nullptr;
  }

 private:
  lzma_stream stream_ = LZMA_STREAM_INIT;
};

}  // namespace

Error input_error(std::string_view file, std::size_t line, const std::string& what) {
  return Error{{Code::invalid_argument}, std::string(file) + ":" + std::to_string(line) + ": " + what};
}

Result<std::string> read_text(const std::string& path) {
  std::error_code unknown;
  if (std::filesystem::exists(path, unknown) && !std::filesystem::is_regular_file(path, unknown)) {
    return file_error(path, "is not a regular file");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return file_error(path, "cannot be opened");
  std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) return file_error(path, "cannot be read");
  if (!path.ends_with(".xz")) {
    if (bytes.size() > kMostText) return file_error(path, "holds more than 1 GiB of text");
    return bytes;
  }
  Decoder decoder;
  if (!decoder.begin()) return file_error(path, "no memory for the xz decoder");
  std::string text;
  if (const char* const fault = decoder.run(bytes, text)) return file_error(path, fault);
  return text;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines = fields_of(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  for (std::string_view& line : lines) {
    if (line.ends_with('\r')) line.remove_suffix(1);
  }
  return lines;
}

std::vector<std::string_view> fields_of(std::string_view line, char between) {
  std::vector<std::string_view> fields;
  for (std::size_t at = 0;;) {
    const std::size_t end = line.find(between, at);
    if (end == std::string_view::npos) {
      fields.push_back(line.substr(at));
      return fields;
    }
    fields.push_back(line.substr(at, end - at));
    at = end + 1;
  }
}

bool parse_number(std::string_view field, double& out) {
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), out);
  return error == std::errc{} && end == field.data() + field.size() && std::isfinite(out);
}

bool parse_number(std::string_view field, std::uint64_t& out) {
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), out);
  return error == std::errc{} && end == field.data() + field.size();
}

}  // namespace kvrail::simulation
