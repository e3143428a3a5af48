// Two agents of one machine: a planner writes KV for a conversation and hands it to a coder.
//   handover [SOCKET]        needs a running kvraild
#include <kvrail/agent.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <vector>

using std::literals::chrono_literals::operator""s;

namespace {

int fail(const kvrail::Error& error) {
  std::fprintf(stderr, "%s\n", error.message.c_str());
  return 1;
}

// A small model: 2 layers, 2 KV heads of 64, bf16. Real agents give the layout of theirs.
kvrail::Layout layout() {
  kvrail::Layout layout;
  layout.model_id = {0x1234, 0x5678};
  layout.layers = 2;
  layout.kv_heads = 2;
  layout.head_dim = 64;
  return layout;
}

kvrail::Result<kvrail::Agent> attach(const char* socket, const char* name, kvrail::RoleWeight role) {
  kvrail::AttachOptions options;
  if (socket != nullptr) options.socket_path = socket;
  options.name = name;
  options.role = role;
  options.layout = layout();
  return kvrail::Agent::attach(options);
}

// Stands for a prefill: writes each row where the model would.
void write_kv(const kvrail::Blocks& blocks, std::size_t tokens) {
  const std::size_t step = layout().block_tokens;
  for (std::uint32_t layer = 0; layer < layout().layers; ++layer) {
    for (std::uint32_t kv = 0; kv < 2; ++kv) {
      for (std::size_t token = blocks.first_block() * step; token < tokens; ++token) {
        const auto row = blocks.row(token / step - blocks.first_block(), layer, kv, static_cast<std::uint32_t>(token % step));
        std::memset(row.data(), static_cast<int>(token & 0x3f), row.size());
      }
    }
  }
}

int read_kv(const char* who, const kvrail::Delivery& delivery) {
  std::printf("%s has '%.*s' version %llu from %.*s: %zu tokens, %zu blocks, by %s\n", who,
              static_cast<int>(delivery.context().size()), delivery.context().data(),
              static_cast<unsigned long long>(delivery.version()), static_cast<int>(delivery.owner().size()),
              delivery.owner().data(), delivery.tokens().size(), delivery.blocks().size(),
              kvrail::medium_name(delivery.medium()).data());
  std::size_t covered = 0;
  for (const kvrail::BlockView block : delivery.blocks()) {
    covered += block.tokens;
    if (block.data[0] != static_cast<std::byte>(block.position & 0x3f)) return 1;
  }
  return covered == delivery.tokens().size() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const char* socket = argc > 1 ? argv[1] : nullptr;
  auto planner = attach(socket, "planner", kvrail::kRoleCoordinator);
  if (!planner.ok()) return fail(planner.error());
  auto coder = attach(socket, "coder", kvrail::kRoleExecutor);
  if (!coder.ok()) return fail(coder.error());

  auto task = planner->begin_task({.workflow = "review", .deadline = 2s});
  if (!task.ok()) return fail(task.error());
  std::vector<kvrail::TokenId> tokens(100);
  std::iota(tokens.begin(), tokens.end(), 1000U);
  auto blocks = planner->allocate(layout(), 2);
  if (!blocks.ok()) return fail(blocks.error());
  write_kv(*blocks, tokens.size());
  auto context = planner->commit("conversation-42", tokens, *blocks);
  if (!context.ok()) return fail(context.error());

  auto ticket = planner->send(*context, {"coder"}, {.task = *task, .deadline = 1s});
  if (!ticket.ok()) return fail(ticket.error());
  auto delivery = coder->receive(2s);
  if (!delivery.ok()) return fail(delivery.error());
  int wrong = read_kv("coder", *delivery);

  // The coder goes on where the planner stopped. The full block is shared, only the rest is written.
  tokens.resize(200, 7);
  auto more = coder->allocate(layout(), 3);
  if (!more.ok()) return fail(more.error());
  more->start_at(1);
  write_kv(*more, tokens.size());
  auto work = coder->commit("work", tokens, *more, kvrail::Fence::none(), &*delivery);
  if (!work.ok()) return fail(work.error());
  auto handed_back = coder->send(*work, {"planner"}, {.task = *task});
  if (!handed_back.ok()) return fail(handed_back.error());
  coder->forget(*handed_back);
  auto returned = planner->receive(2s);
  if (!returned.ok()) return fail(returned.error());
  wrong += read_kv("planner", *returned);

  auto outcomes = planner->wait(*ticket, 2s);
  if (!outcomes.ok()) return fail(outcomes.error());
  std::printf("planner: %s\n", kvrail::name((*outcomes)[0].status.code));
  if (auto ended = planner->end_task(*task); !ended.ok()) return fail(ended.error());
  return wrong;
}
