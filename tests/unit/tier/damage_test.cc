// Files that were changed while nobody had them: bits, ends, versions, strangers (bad input 25 of the test plan).
#include <fcntl.h>
#include <sys/stat.h>

#include "tests/unit/tier/file_fixture.h"

using namespace kvrail;
using namespace kvrail::engine;
using namespace kvrail::engine::testing;
namespace fs = std::filesystem;

namespace {

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_file(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

constexpr std::uint64_t kBlocks = 6;

// A folder with one segment of six blocks, as it was left.
struct Left {
  Left() : options(small_tier(folder)) {
    Tier tier(options);
    for (std::uint64_t number = 0; number < kBlocks; ++number) REQUIRE(tier.put(number).status.ok());
    tier.port.reset();
    REQUIRE(folder.segments().size() == 1);
    segment = folder.segments()[0];
    bytes = read_file(segment);
  }
  // How many blocks are there after a start with these bytes. None may be wrong.
  std::uint64_t start_with(const std::string& changed) {
    fs::remove_all(folder.path + "/quarantine");
    for (const fs::path& path : folder.segments()) fs::remove(path);
    write_file(segment, changed);
    Tier tier(options);
    std::uint64_t found = 0;
    for (std::uint64_t number = 0; number < kBlocks; ++number) {
      if (!tier.has(number)) continue;
      const TierCompletion done = tier.get(number);
      if (!done.status.ok()) continue;
      CHECK(tier.slot == tier.make_rows(number, 16));
      ++found;
    }
    damaged = tier.port->figures().damaged;
    quarantined = tier.port->figures().quarantined;
    CHECK(tier.put(50).status.ok());
    CHECK(tier.good(50));
    return found;
  }
  [[nodiscard]] static std::string flip(std::string text, std::size_t at, unsigned bit = 0) {
    text[at] = static_cast<char>(text[at] ^ (1 << bit));
    return text;
  }

  Folder folder{memory_folder()};
  tier::TierOptions options;
  fs::path segment;
  std::string bytes;
  std::uint64_t damaged = 0, quarantined = 0;
};

}  // namespace

TEST_CASE("tier damage: a flipped bit in any field of a piece's header, or in its stream, costs that block alone") {
  Left left;
  CHECK(left.start_with(left.bytes) == kBlocks);
  const std::size_t piece = 4096 + 2 * tier::piece_disk_bytes(8192);
  for (std::size_t at = 0; at < 128; at += 2) {
    CHECK(left.start_with(Left::flip(left.bytes, piece + at, at % 8)) == kBlocks - 1);
    CHECK(left.damaged > 0);
  }
  for (std::size_t at = 128; at < 128 + 8192; at += 613) {
    CHECK(left.start_with(Left::flip(left.bytes, piece + at, at % 8)) == kBlocks - 1);
    CHECK(left.damaged > 0);
  }
  // Behind the stream there is nothing that means anything.
  CHECK(left.start_with(Left::flip(left.bytes, piece + 128 + 8192 + 5)) == kBlocks);
}

TEST_CASE("tier damage: a flipped bit in a segment's header moves the file aside") {
  Left left;
  for (const std::size_t at : {0U, 7U, 8U, 9U, 16U, 24U, 32U, 40U, 56U, 63U, 64U, 4095U}) {
    CHECK(left.start_with(Left::flip(left.bytes, at)) == 0);
    CHECK(left.quarantined == 1);
    CHECK(fs::exists(left.folder.path + "/quarantine/" + left.segment.filename().string()));
  }
}

TEST_CASE("tier damage: a file that was cut at any page keeps what is before, one that grew keeps all") {
  Left left;
  const std::size_t block = tier::piece_disk_bytes(8192);
  for (std::size_t cut = 0; cut <= left.bytes.size(); cut += 4096) {
    const std::uint64_t whole = cut < 4096 ? 0 : (cut - 4096) / block;
    CHECK(left.start_with(left.bytes.substr(0, cut)) == std::min(whole, kBlocks));
  }
  CHECK(left.start_with(left.bytes.substr(0, 4096 + block + 17)) == 1);
  CHECK(left.start_with(left.bytes + std::string(300'000, 'x')) == kBlocks);
}

TEST_CASE("tier damage: pages that were never written, or hold noise, are passed") {
  Left left;
  const std::size_t block = tier::piece_disk_bytes(8192);
  std::string hole = left.bytes;
  hole.replace(4096 + block, block, block, '\0');
  CHECK(left.start_with(hole) == kBlocks - 1);
  std::string noise = left.bytes;
  Prng random(3);
  for (std::size_t at = 4096; at < 4096 + 2 * block; ++at) noise[at] = static_cast<char>(random.next_u32());
  CHECK(left.start_with(noise) == kBlocks - 2);
  // Every page swapped with the first: same bytes, other places.
  for (std::size_t page = 2; page * 4096 < 4096 + kBlocks * block; ++page) {
    std::string swapped = left.bytes;
    std::swap_ranges(swapped.begin() + 4096, swapped.begin() + 8192, swapped.begin() + static_cast<std::ptrdiff_t>(page * 4096));
    CHECK(left.start_with(swapped) >= kBlocks - 2);
  }
}

TEST_CASE("tier damage: what lies in rows is never taken for a piece") {
  // Rows that hold, page by page, the image of a piece of this very segment for another hash, sealed by every key but the right one.
  Left left;
  tier::SegmentHeader header;
  REQUIRE(tier::decode_segment(std::as_bytes(std::span(left.bytes)).first(4096), header) == tier::Found::ok);
  tier::SegmentHeader guessed = header;
  guessed.key ^= 1;
  std::string planted = left.bytes;
  const std::size_t block = tier::piece_disk_bytes(8192);
  const tier::PieceHeader piece{.hash = hash_of(1), .shape = codec::fingerprint(small_layout()), .sequence = 1'000, .bytes = 64, .tokens = 16, .last = true};
  tier::encode_piece(guessed, piece, std::as_writable_bytes(std::span(planted)).subspan(4096 + 4 * block + 4096, 128));
  planted = Left::flip(planted, 4096 + 4 * block);  // and the header before them damaged, so that they are looked at
  CHECK(left.start_with(planted) == kBlocks - 1);
}

TEST_CASE("tier damage: strangers, links and other versions are moved aside, not deleted, not followed") {
  Left left;
  const std::string& folder = left.folder.path;
  const Folder elsewhere;
  write_file(elsewhere.path + "/precious", left.bytes);
  write_file(folder + "/notes.txt", "mine");
  fs::create_directory(folder + "/photos");
  fs::create_symlink(elsewhere.path + "/precious", folder + "/segment-00000000000000aa");
  write_file(folder + "/segment-00000000000000bb", left.bytes);  // a copy under another name
  write_file(folder + "/segment-00000000000000cc", "");
  REQUIRE(::mkfifo((folder + "/segment-00000000000000dd").c_str(), 0600) == 0);
  tier::SegmentHeader header{0xee, 5, 1U << 20};
  std::string newer(8192, '\0');
  tier::encode_segment(header, std::as_writable_bytes(std::span(newer)).first(4096));
  newer[8] = 2;
  write_file(folder + "/segment-00000000000000ee", newer);
  {
    Tier tier(left.options);
    CHECK(tier.port->figures().quarantined == 7);
    CHECK(tier.port->warnings().size() == 1);
    for (std::uint64_t number = 0; number < kBlocks; ++number) CHECK(tier.good(number));
  }
  CHECK(read_file(folder + "/quarantine/notes.txt") == "mine");
  CHECK(fs::is_directory(folder + "/quarantine/photos"));
  CHECK(fs::is_symlink(folder + "/quarantine/segment-00000000000000aa"));
  CHECK(read_file(elsewhere.path + "/precious") == left.bytes);
  CHECK(read_file(folder + "/quarantine/segment-00000000000000ee") == newer);
  // A second file of a name that is there already finds a place too.
  write_file(folder + "/notes.txt", "mine too");
  Tier tier(left.options);
  CHECK(read_file(folder + "/quarantine/notes.txt") == "mine");
  CHECK(read_file(folder + "/quarantine/notes.txt.1") == "mine too");
}

TEST_CASE("tier damage: a damaged manifest, or one of a newer version, is moved aside; what segments hold stays") {
  for (const std::size_t at : {0U, 8U, 20U, 56U, 100U}) {
    Left left;
    const fs::path manifest = left.folder.path + "/kvrail.manifest";
    write_file(manifest, Left::flip(read_file(manifest), at));
    Tier tier(left.options);
    CHECK(tier.port->warnings().size() == 1);
    CHECK(fs::exists(left.folder.path + "/quarantine/kvrail.manifest"));
    for (std::uint64_t number = 0; number < kBlocks; ++number) CHECK(tier.good(number));
  }
}

TEST_CASE("tier damage: a file that shrinks, or is written to, while the tier has it") {
  Left left;
  left.options.direct = tier::DirectMode::off;
  Tier tier(left.options);
  const std::size_t block = tier::piece_disk_bytes(8192);
  {
    std::fstream file(left.segment, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(4096 + block + 700));
    file << "scratch";
  }
  CHECK(tier.get(1).status.code == Code::corrupt);
  tier.until([&] { return !tier.gone.empty(); });
  CHECK_FALSE(tier.has(1));
  fs::resize_file(left.segment, 4096 + 3 * block);
  CHECK(tier.good(2));
  CHECK(tier.get(4).status.code == Code::io_error);
  CHECK(tier.put(60).status.ok());
  CHECK(tier.good(60));
}

TEST_CASE("tier damage: reading again in the background finds what went bad before anybody asks for it") {
  Left left;
  left.options.direct = tier::DirectMode::off;
  left.options.scrub_share = 1;
  left.options.capacity_bytes = 64U << 20;
  Tier tier(left.options);
  {
    std::fstream file(left.segment, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(4096 + 2 * tier::piece_disk_bytes(8192) + 700));
    file << "scratch";
  }
  for (std::uint64_t number = 100; tier.has(2) && number < 2'000; ++number) CHECK(tier.put(number).status.ok());
  CHECK_FALSE(tier.has(2));
  CHECK(tier.good(1));
  CHECK(tier.good(3));
  CHECK(tier.port->thread().figures().scrubbed_bytes.load() > 0);
}
