// Two network namespaces joined by a veth pair, each direction shaped by tbf on the sender's own end.
#pragma once

#include <string>

namespace kvrail::bench {

class ShapedLink {
 public:
  explicit ShapedLink(const std::string& rate);
  ~ShapedLink();
  ShapedLink(const ShapedLink&) = delete;
  ShapedLink& operator=(const ShapedLink&) = delete;
  // Why there cannot be one here (no right, no ip or tc); empty if it stands.
  [[nodiscard]] const std::string& missing() const { return missing_; }

  [[nodiscard]] const std::string& name(int end) const { return names_[end == 0 ? 0 : 1]; }
  [[nodiscard]] static const char* address(int end) { return end == 0 ? "10.203.91.1" : "10.203.91.2"; }

 private:
  void run(const std::string& command);
  std::string names_[2];
  std::string missing_;
};

}  // namespace kvrail::bench
