#include "perf/demo/role.h"

#include <algorithm>
#include <cstdio>

namespace kvrail::demo {
namespace {

RoleWeight weight_of(const std::string& role) {
  if (role == "coordinator") return kRoleCoordinator;
  return role == "verifier" ? kRoleVerifier : kRoleExecutor;
}

}  // namespace

Result<Role> Role::attach(const AgentOptions& options) {
  Result<model::Model> loaded = model::Model::load(options.model);
  if (!loaded.ok()) return std::move(loaded).error();
  auto model = std::make_unique<model::Model>(std::move(loaded).value());
  Result<model::FactWorld> world = model::FactWorld::of(*model);
  if (!world.ok()) return std::move(world).error();
  AttachOptions attach;
  attach.socket_path = options.socket;
  attach.name = options.name;
  attach.role = weight_of(options.role);
  attach.layout = model->layout(options.block_tokens);
  attach.tokenizer = model->id();
  attach.accepted |= mask_of(Medium::split);
  attach.compute.prefill_per_token_ns = static_cast<std::uint64_t>(options.prefill_per_token_ns);
  Result<Agent> agent = Agent::attach(attach);
  if (!agent.ok()) return std::move(agent).error();
  return Role(std::move(model), std::move(world).value(), std::move(agent).value(),
              {options.prefill_per_token_ns});
}

Result<void> Role::tell(std::string_view receiver, const Note& note, Task task, bool critical) {
  const std::vector<TokenId> tokens = encode(note);
  const std::uint32_t step = agent_.layout().block_tokens;
  // Every context has block slots; those of a note stay unused, for only its tokens are sent.
  auto blocks = agent_.allocate(agent_.layout(),
                                static_cast<std::uint32_t>((tokens.size() + step - 1) / step));
  if (!blocks.ok()) return std::move(blocks).error();
  const std::string name = std::string(kNotePrefix) + std::to_string(++note_count_);
  auto context = agent_.commit(name, tokens, *blocks);
  if (!context.ok()) return std::move(context).error();
  notes_.push_back(name);
  SendOptions options;
  options.task = task;
  options.critical = critical;
  options.medium = Medium::tokens;
  auto ticket = agent_.send(*context, {receiver}, options);
  if (!ticket.ok()) return std::move(ticket).error();
  agent_.forget(*ticket);
  return {};
}

void Role::drop_notes() {
  for (const std::string& name : notes_) static_cast<void>(agent_.drop_context(name));
  notes_.clear();
}

namespace {

// Blocks at the start that a context computed on this delivery shares with it, instead of a copy.
std::uint32_t full_blocks_held(const Delivery& delivery) {
  std::uint32_t held = 0;
  for (const BlockView block : delivery.blocks()) {
    const std::uint32_t step = delivery.layout().block_tokens;
    if (block.tokens != step || block.position != held * step) break;
    ++held;
  }
  return held;
}

}  // namespace

Result<Context> Role::commit_all(const std::string& name, const Reader& reader,
                                 const Delivery* prefix) {
  const Layout& layout = agent_.layout();
  const std::uint32_t held = prefix == nullptr ? 0 : full_blocks_held(*prefix);
  const std::uint32_t count =
      (reader.length() + layout.block_tokens - 1) / layout.block_tokens - held;
  auto blocks = agent_.allocate(layout, std::max(count, 1U));
  if (!blocks.ok()) return std::move(blocks).error();
  blocks->start_at(held);
  if (auto done = write_rows(reader.session(), layout, held * layout.block_tokens, *blocks);
      !done.ok())
    return std::move(done).error();
  return agent_.commit(name, reader.tokens(), *blocks, Fence::none(), prefix);
}

int serve(const AgentOptions& options, Role& role,
          const std::function<Result<void>(Delivery)>& handle) {
  std::puts("ready");
  std::fflush(stdout);
  while (!asked_to_end()) {
    auto delivery = role.agent().receive(kLook);
    if (!delivery.ok()) {
      if (delivery.status().code == Code::timed_out) continue;
      return fail(options, "receive", delivery.error());
    }
    if (auto done = handle(std::move(delivery).value()); !done.ok())
      return fail(options, "work", done.error());
  }
  static_cast<void>(role.agent().detach());
  return 0;
}

std::string document_name(std::uint32_t task) {
  return "document-" + std::to_string(task);
}

std::string work_name(std::uint32_t task, std::string_view agent) {
  return "work-" + std::to_string(task) + "-" + std::string(agent);
}

int fail(const AgentOptions& options, std::string_view what, const Error& error) {
  std::fprintf(stderr, "%s: %.*s: %s (%s)\n", options.name.c_str(), static_cast<int>(what.size()),
               what.data(), error.message.c_str(), name(error.status.code));
  return 1;
}

}  // namespace kvrail::demo
