// kvrail-calibrate: see --help and docs/codecs.md.
#include <cstdio>
#include <fstream>

#include "perf/calibrate/calibrate.h"

namespace {

bool write_file(const std::string& path, const char* data, std::size_t bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(data, static_cast<std::streamsize>(bytes));
  file.close();
  if (file.good()) return true;
  std::fprintf(stderr, "kvrail-calibrate: %s: cannot be written; check the folder and its space\n",
               path.c_str());
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace kvrail;
  int exit_code = 2;
  auto options = calibrate::parse_options(argc, argv, exit_code);
  if (!options.ok()) {
    if (!options.error().message.empty())
      std::fprintf(stderr, "kvrail-calibrate: %s\n", options.error().message.c_str());
    return exit_code;
  }
  const auto done = calibrate::calibrate(*options);
  if (!done.ok()) {
    std::fprintf(stderr, "kvrail-calibrate: %s\n", done.error().message.c_str());
    return done.status().code == Code::internal ? 1 : 2;
  }
  const std::string text = calibrate::profile_text(done->profile, done->lines);
  const std::string basis = options->out + ".basis", profile = options->out + ".profile.toml";
  if (!write_file(basis, reinterpret_cast<const char*>(done->basis.data()), done->basis.size()) ||
      !write_file(profile, text.data(), text.size()))
    return 1;
  for (const std::string& line : done->lines) std::printf("%s\n", line.c_str());
  std::printf("%s, %s (%zu bytes)\n", profile.c_str(), basis.c_str(), done->basis.size());
  return std::fflush(stdout) == 0 ? 0 : 1;
}
