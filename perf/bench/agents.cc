#include "perf/bench/agents.h"

#include <cstring>
#include <vector>

namespace kvrail::bench {
namespace {

// What commit_new() writes at the start of a block.
struct Mark {
  std::uint64_t seed;
  std::uint64_t block;
};

}  // namespace

Layout small_layout() {
  Layout layout;
  layout.model_id = {0x6b76, 1};
  layout.layers = 1;
  layout.kv_heads = 1;
  layout.head_dim = 64;
  layout.block_tokens = 16;
  return layout;
}

Layout large_layout() {
  Layout layout = small_layout();
  layout.model_id.high = 2;
  layout.layers = 4;
  layout.kv_heads = 2;
  layout.block_tokens = 32;
  return layout;
}

AttachOptions agent_options(const std::string& name, const Layout& layout, std::uint64_t arena_bytes) {
  AttachOptions options;
  options.name = name;
  options.layout = layout;
  options.arena_bytes = arena_bytes;
  options.tokenizer = {1, 1};
  options.timeout = kPatience;
  return options;
}

Agent attach(const std::string& socket, AttachOptions options) {
  options.socket_path = socket;
  return must(Agent::attach(options), "an agent cannot attach");
}

NewContext commit_new(Agent& agent, const std::string& name, std::uint32_t block_count, std::uint64_t seed,
                      bool write) {
  const Layout layout = agent.layout();
  NewContext made;
  made.blocks = must(agent.allocate(layout, block_count, Place::host(), kPatience), "no blocks");
  if (write) {
    for (std::uint32_t i = 0; i < block_count; ++i) {
      const Mark mark{seed, i};
      std::memcpy(made.blocks.slot(i).data(), &mark, sizeof(mark));
    }
  }
  std::vector<TokenId> tokens(std::size_t{block_count} * layout.block_tokens);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i & 0xffff);
  tokens[0] = static_cast<TokenId>(seed);
  made.context = must(agent.commit(name, tokens, made.blocks, Fence::none(), nullptr, kPatience), "no commit");
  return made;
}

std::uint32_t seed_of(const Delivery& delivery) {
  if (delivery.tokens().empty()) throw Failure("a delivery without tokens");
  return delivery.tokens()[0];
}

void verify(const Delivery& delivery, std::uint32_t block_count, std::uint64_t seed) {
  if (delivery.blocks().size() != block_count) throw Failure("a delivery lacks blocks");
  for (std::uint32_t i = 0; i < block_count; ++i) {
    Mark mark;
    std::memcpy(&mark, delivery.blocks()[i].data.data(), sizeof(mark));
    if (mark.seed != seed || mark.block != i) throw Failure("block " + std::to_string(i) + " holds something else");
  }
}

void send_and_wait(Agent& agent, const Context& context, std::string_view receiver, const SendOptions& options) {
  const Ticket ticket = must(agent.send(context, {receiver}, options), "cannot send");
  const auto outcomes = must(agent.wait(ticket, kPatience), "a send does not end");
  if (!outcomes[0].status.ok()) throw Failure(std::string("a send ended with ") + name(outcomes[0].status.code));
}

}  // namespace kvrail::bench
