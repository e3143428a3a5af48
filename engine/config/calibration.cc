#include "engine/config/calibration.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "engine/config/profile.h"

namespace kvrail::engine {
namespace {

constexpr std::int64_t kMostBasisBytes = std::int64_t{1} << 30;

Error refused(Status status, const std::string& file, const std::string& what) { return Error{status, file + ": " + what}; }

Result<std::vector<std::byte>> read_basis(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return refused({Code::not_found, Scope::engine, errno}, path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return refused({Code::invalid_argument, Scope::engine}, path, "is not a regular file");
  if (info.st_size > kMostBasisBytes) return refused({Code::too_large, Scope::engine}, path, "is larger than any basis, 1 GiB");
  std::ifstream file(path, std::ios::binary);
  if (!file) return refused({Code::permission_denied, Scope::engine, errno}, path, std::strerror(errno));
  std::vector<std::byte> bytes(static_cast<std::size_t>(info.st_size));
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (static_cast<std::size_t>(file.gcount()) != bytes.size()) return refused({Code::corrupt, Scope::engine}, path, "could not be read whole");
  return bytes;
}

// Its loss is what the medium is chosen by.
const codec::ProfileDepth* depth_without_lowrank(const codec::Profile& profile) {
  for (const codec::ProfileDepth& depth : profile.depths) {
    if (!depth.media[static_cast<std::size_t>(Medium::lowrank)].known) return &depth;
  }
  return nullptr;
}

}  // namespace

Result<Calibration> load_calibration(const std::string& path) {
  auto profile = load_profile(path);
  if (!profile.ok()) return std::move(profile).error();
  Calibration out{std::move(profile).value(), std::nullopt};
  if (out.profile.basis_file.empty()) return out;
  if (const codec::ProfileDepth* depth = depth_without_lowrank(out.profile)) {
    return refused({Code::invalid_argument, Scope::engine}, path,
                   "names a basis of lowrank, but up to " + std::to_string(depth->up_to_tokens) +
                       " tokens it does not say what lowrank loses; calibrate again");
  }
  const std::string beside = (std::filesystem::path(path).parent_path() / out.profile.basis_file).string();
  auto file = read_basis(beside);
  if (!file.ok()) return std::move(file).error();
  auto basis = codec::Basis::parse(*file);
  if (!basis.ok()) return refused(basis.status(), beside, basis.error().message);
  if (basis->id() != out.profile.basis_id) {
    return refused({Code::invalid_argument, Scope::engine}, beside,
                   "is another basis than " + path + " was made with; take both from one calibration");
  }
  out.basis.emplace(std::move(basis).value());
  return out;
}

}  // namespace kvrail::engine
