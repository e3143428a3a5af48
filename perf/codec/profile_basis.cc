#include "perf/codec/profile_basis.h"

#include <filesystem>
#include <vector>

#include "engine/config/profile.h"
#include "perf/codec/input_file.h"

namespace kvrail::fidelity {
namespace {

constexpr std::uint64_t kMostBasisBytes = 1ULL << 30;

}  // namespace

Result<ProfileBasis> load_profile_basis(const std::string& path) {
  auto profile = engine::load_profile(path);
  if (!profile.ok()) return std::move(profile).error();
  if (profile->basis_file.empty()) {
    return Error{{Code::invalid_argument}, path + ": names no basis of lowrank; run kvrail-calibrate"};
  }
  const auto beside = std::filesystem::path(path).parent_path() / profile->basis_file;
  auto file = InputFile::open(beside.string());
  if (!file.ok()) return std::move(file).error();
  if (file->size() > kMostBasisBytes) return file->fault("is larger than any basis, 1 GiB");
  std::vector<std::byte> bytes(file->size());
  if (auto read = file->read(0, bytes); !read.ok()) return std::move(read).error();
  auto basis = codec::Basis::parse(bytes);
  if (!basis.ok()) return Error{basis.status(), beside.string() + ": " + basis.error().message};
  if (basis->id() != profile->basis_id) {
    return file->fault("is another basis than " + path + " was made with; take both from one calibration");
  }
  return ProfileBasis{std::move(*basis), profile->theta, profile->protection};
}

}  // namespace kvrail::fidelity
