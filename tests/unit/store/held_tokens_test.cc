// Token ids for agents of a node that holds the start of the context already.
#include "engine/core/manifest.h"
#include "tests/unit/store/fixture.h"

using namespace kvrail;
using namespace kvrail::engine;
using namespace kvrail::engine::testing;

namespace {

ManifestHeader header_of(const Fixture& f, DeliveryHandle delivery) {
  const ManifestRef manifest = f.store->manifest(delivery);
  ManifestHeader header;
  std::memcpy(&header, f.store->arena(manifest.arena)->base() + manifest.offset, sizeof(header));
  return header;
}

}  // namespace

TEST_CASE("a delivery of token ids shows what is held of the start, and is no KV to send") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  const auto tokens = ids(16 * 3 + 5);
  const Extent slots = f.allocate(a, 2);
  f.fill(slots, 7);
  REQUIRE(f.commit(a, "start", ids(32), {slots}).ok());
  const auto publish = [&](std::optional<std::uint32_t> limit) {
    return f.store->publish_tokens(f.tenant, name("far"), name("doc"), 1, f.layout, Medium::tokens,
                                   tokens, limit);
  };
  const auto plain = publish(std::nullopt);
  const auto shown = publish(0);
  REQUIRE((plain.ok() && shown.ok()));
  CHECK(*publish(0) == *shown);
  CHECK(f.view(*shown).blocks.empty());   // as a source it holds token ids only
  CHECK(f.view(*shown).medium == Medium::tokens);
  const DeliveryHandle to_plain = f.store->deliver(a, *plain);
  const DeliveryHandle to_shown = f.store->deliver(a, *shown);
  CHECK(header_of(f, to_plain).block_count == 0);
  CHECK(header_of(f, to_shown).block_count == 2);
  CHECK(header_of(f, to_shown).token_count == tokens.size());
  // What a delivery shows stays, whatever its first owner does.
  f.store->drop_context(a, name("start"));
  CHECK(f.store->counters().blocks == 2);
  CHECK(f.store->have(f.tenant, f.layout, tokens, 0).leading_blocks == 2);
  // A context computed on it may build on those blocks.
  const Extent rest = f.allocate(a, 2);
  REQUIRE(f.commit(a, "work", tokens, {rest}, to_shown, 2).ok());
  CHECK(f.store->release(a, to_plain));
  CHECK(f.store->release(a, to_shown));
}

TEST_CASE("token ids show nothing with more loss than allowed") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  const auto tokens = ids(40);
  f.receive(f.request("far", "lossy", ids(32), 1, Medium::full, 40), 5);
  const auto strict = f.store->publish_tokens(f.tenant, name("far"), name("doc"), 1, f.layout,
                                              Medium::tokens, tokens, 0);
  const auto lax = f.store->publish_tokens(f.tenant, name("far"), name("doc"), 2, f.layout,
                                           Medium::tokens, tokens, 40);
  REQUIRE((strict.ok() && lax.ok()));
  CHECK(header_of(f, f.store->deliver(a, *strict)).block_count == 0);
  CHECK(header_of(f, f.store->deliver(a, *lax)).block_count == 2);
  CHECK(f.view(*lax).epsilon_ppm == 40);
}
