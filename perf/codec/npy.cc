// The header of .npy files, parsed by hand: it is a Python literal of a fixed form.
#include <charconv>

#include "kvrail/base/byte_order.h"
#include "perf/codec/tensor.h"

namespace kvrail::fidelity {
namespace {

constexpr std::uint64_t kMostHeaderBytes = 1U << 20;
constexpr std::size_t kMostDims = 32;  // as numpy

struct Header {
  std::optional<std::string> descr;
  std::optional<bool> fortran;
  std::optional<std::vector<std::uint64_t>> shape;
};

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  // Empty if all is well, else what is wrong.
  std::string header(Header& out) {
    if (!take('{')) return "its header is no dictionary";
    while (!take('}')) {
      std::string key;
      if (!string(key) || !take(':')) return "its header is no dictionary of names and values";
      if (auto fault = value(key, out); !fault.empty()) return fault;
      if (!take(',') && peek() != '}') return "its header lacks a comma after '" + key + "'";
    }
    skip_blanks();
    if (at_ != text_.size()) return "its header goes on after its end";
    if (!out.descr || !out.fortran || !out.shape)
      return "its header lacks one of descr, fortran_order, shape";
    return {};
  }

 private:
  std::string value(const std::string& key, Header& out) {
    if (key == "descr" && !out.descr) {
      out.descr.emplace();
      return string(*out.descr) ? "" : "its descr is no plain type (records cannot be read)";
    }
    if (key == "fortran_order" && !out.fortran) {
      out.fortran = word("True");
      return *out.fortran || word("False") ? "" : "its fortran_order is neither True nor False";
    }
    if (key == "shape" && !out.shape) {
      out.shape.emplace();
      return shape(*out.shape) ? "" : "its shape is no tuple of sizes";
    }
    return "its header has '" + printable(key) + "' twice, or where only descr, fortran_order " +
           "and shape may stand";
  }

  bool shape(std::vector<std::uint64_t>& out) {
    if (!take('(')) return false;
    while (!take(')')) {
      skip_blanks();
      std::uint64_t size = 0;
      const char* begin = text_.data() + at_;
      const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), size);
      if (error != std::errc() || out.size() == kMostDims) return false;
      at_ += static_cast<std::size_t>(end - begin);
      out.push_back(size);
      if (!take(',') && peek() != ')') return false;
    }
    return true;
  }

  bool string(std::string& out) {
    const char quote = peek();
    if (quote != '\'' && quote != '"') return false;
    const std::size_t end = text_.find(quote, ++at_);
    if (end == std::string_view::npos) return false;
    out = text_.substr(at_, end - at_);
    at_ = end + 1;
    return out.find('\\') == std::string::npos;
  }

  bool word(std::string_view expected) {
    skip_blanks();
    if (text_.substr(at_, expected.size()) != expected) return false;
    at_ += expected.size();
    return true;
  }
  bool take(char expected) {
    if (peek() != expected) return false;
    ++at_;
    return true;
  }
  char peek() {
    skip_blanks();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t'))
      ++at_;
  }

  static std::string printable(const std::string& text) {
    std::string out;
    for (const char c : text.substr(0, 32)) out += c >= ' ' && c <= '~' ? c : '?';
    return out;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

Result<std::uint64_t> header_end(const InputFile& file, std::uint64_t& begin) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  const std::uint64_t room = std::min<std::uint64_t>(file.size(), 12);
  auto start = file.text(0, room);
  if (!start.ok()) return std::move(start).error();
  if (start->size() < 10 || !start->starts_with(kMagic))
    return file.fault("does not begin as a .npy file does; write it with numpy.save");
  const auto major = static_cast<unsigned char>((*start)[6]);
  const auto minor = static_cast<unsigned char>((*start)[7]);
  if ((major != 1 && major != 2) || minor != 0) {
    return file.fault("is .npy version " + std::to_string(major) + "." + std::to_string(minor) +
                      "; versions 1.0 and 2.0 can be read (numpy.save writes 1.0)");
  }
  begin = major == 1 ? 10 : 12;
  if (start->size() < begin) return file.fault("ends within its header");
  const std::uint64_t length =
      major == 1 ? load_le16(start->data() + 8) : load_le32(start->data() + 8);
  if (length > kMostHeaderBytes || length > file.size() - begin) {
    return file.fault("says that its header has " + std::to_string(length) + " bytes; " +
                      std::to_string(file.size() - begin) + " follow and " +
                      std::to_string(kMostHeaderBytes) + " are allowed");
  }
  return begin + length;
}

Result<std::optional<Dtype>> dtype_of(const InputFile& file, const std::string& descr,
                                      std::uint64_t& bytes_each) {
  bytes_each = 2;
  if (descr == "<f2") return std::optional<Dtype>(Dtype::fp16);
  if (descr == "<u2" || descr == "<V2" || descr == "|V2") return std::optional<Dtype>();
  bytes_each = 4;
  if (descr == "<f4") return std::optional<Dtype>(Dtype::fp32);
  if (descr.starts_with('>'))
    return file.fault("is big-endian; save it with astype(a.dtype.newbyteorder('<'))");
  std::string shown;
  for (const char c : descr.substr(0, 16)) shown += c >= ' ' && c <= '~' ? c : '?';
  return file.fault("has values of type '" + shown +
                    "'; <f2, <f4, and <V2 or <u2 with --dtype can be read: convert with astype");
}

}  // namespace

std::optional<std::uint64_t> bytes_of(const std::vector<std::uint64_t>& shape,
                                      std::uint64_t bytes_each) {
  std::uint64_t bytes = bytes_each;
  for (const std::uint64_t size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return bytes;
}

Result<TensorPlace> npy_place(const InputFile& file) {
  std::uint64_t begin = 0;
  auto end = header_end(file, begin);
  if (!end.ok()) return std::move(end).error();
  auto text = file.text(begin, *end - begin);
  if (!text.ok()) return std::move(text).error();
  Header header;
  if (const std::string fault = Parser(*text).header(header); !fault.empty())
    return file.fault(fault + "; write it with numpy.save");
  if (*header.fortran)
    return file.fault("is in Fortran order; save numpy.ascontiguousarray(a) instead");
  std::uint64_t bytes_each = 0;
  auto dtype = dtype_of(file, *header.descr, bytes_each);
  if (!dtype.ok()) return std::move(dtype).error();
  const auto bytes = bytes_of(*header.shape, bytes_each);
  if (!bytes || *bytes != file.size() - *end) {
    return file.fault("has " + std::to_string(file.size() - *end) +
                      " bytes of values; its shape and type need " +
                      (bytes ? std::to_string(*bytes) : std::string("more than 2^64")) +
                      ": it was cut short, or its header lies");
  }
  return TensorPlace{*dtype, *header.shape, *end, *bytes};
}

}  // namespace kvrail::fidelity
