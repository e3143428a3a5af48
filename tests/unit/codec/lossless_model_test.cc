// How much lossless saves on KV that a trained model computed.
#include <doctest/doctest.h>

#include <cstring>

#include "codec/lossless.h"
#include "tests/unit/codec/runs.h"
#include "tests/unit/model/model_fixture.h"

using namespace kvrail;
using namespace kvrail::codec;

TEST_CASE("lossless takes less than 1/1.30 of the bytes of the model's bf16 KV, layer by layer") {
  const Layout layout = model::recall_model().layout();
  model::FactSource source(model::recall_world(), 11);
  model::Session session(model::recall_model(), 400);
  REQUIRE(session.append(model::recall_world().document(source.draw(96))).ok());
  const std::vector<std::byte> blocks = model::exported(session, layout);
  const RunShape shape = run_shape(layout, layout.block_tokens);
  std::uint64_t raw = 0;
  std::uint64_t encoded = 0;
  for (std::size_t block = 0; block < session.length() / layout.block_tokens; ++block) {
    for (std::size_t layer = 0; layer < layout.layers; ++layer) {
      codec_test::Run run{shape, std::vector<std::byte>(shape.raw_bytes())};
      std::memcpy(run.bytes.data(),
                  blocks.data() + block * layout.block_bytes() + layer * shape.raw_bytes(),
                  shape.raw_bytes());
      const codec_test::Coded coded = codec_test::encode(lossless_codec(), shape, run);
      CHECK(coded.report.encoded_bytes * 130 <= shape.raw_bytes() * 100);
      CHECK(codec_test::decode(lossless_codec(), shape, coded).run.bytes == run.bytes);
      raw += shape.raw_bytes();
      encoded += coded.report.encoded_bytes;
    }
  }
  MESSAGE("ratio ", static_cast<double>(raw) / static_cast<double>(encoded), " over ", raw,
          " bytes");
  CHECK(raw > 0);
}
