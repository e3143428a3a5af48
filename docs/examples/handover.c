/* The same as handover.cc, in C.
 *   handover_c [SOCKET]      needs a running kvraild */
#include <kvrail/c_api.h>

#include <stdio.h>
#include <string.h>

#define SECOND INT64_C(1000000000)

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, kvrail_last_error());
  return 1;
}

static kvrail_agent* attach(const char* socket, const char* name, uint32_t role) {
  kvrail_attach_options options;
  kvrail_agent* agent = NULL;
  kvrail_attach_options_init(&options);
  options.socket_path = socket;
  options.name = name;
  options.role = role;
  options.layout.model_id[0] = 0x1234;
  options.layout.layers = 2;
  options.layout.kv_heads = 2;
  options.layout.head_dim = 64;
  return kvrail_attach(&options, &agent) == KVRAIL_OK ? agent : NULL;
}

static int show(const kvrail_delivery* delivery) {
  kvrail_delivery_info info;
  kvrail_block block;
  info.size = sizeof(info);
  if (kvrail_delivery_get(delivery, &info) != KVRAIL_OK) return 1;
  printf("coder has '%s' version %llu from %s: %zu tokens, %zu blocks\n", info.context,
         (unsigned long long)info.version, info.owner, info.token_count, info.block_count);
  if (info.token_count != 100 || info.block_count != 2) return 1;
  if (kvrail_delivery_block(delivery, 1, &block) != KVRAIL_OK) return 1;
  return block.tokens == 36 && ((const unsigned char*)block.data)[0] == 2 ? 0 : 1;
}

static int hand_over(kvrail_agent* planner, kvrail_agent* coder) {
  const char* receivers[] = {"coder"};
  uint32_t tokens[100];
  kvrail_blocks* blocks = NULL;
  kvrail_blocks* more = NULL;
  kvrail_delivery* delivery = NULL;
  kvrail_outcome outcome;
  size_t bytes = 0, count = 1, i;
  uint64_t version = 0, ticket = 0;
  void* slot;
  int wrong;

  for (i = 0; i < 100; ++i) tokens[i] = (uint32_t)(1000 + i);
  if (kvrail_allocate(planner, 2, SECOND, &blocks) != KVRAIL_OK) return fail("allocate");
  for (i = 0; i < kvrail_blocks_count(blocks); ++i) {
    slot = kvrail_blocks_slot(blocks, i, &bytes);
    memset(slot, (int)(i + 1), bytes); /* stands for a prefill */
  }
  if (kvrail_commit(planner, "conversation-42", tokens, 100, blocks, NULL, SECOND, &version) != KVRAIL_OK) {
    return fail("commit");
  }
  if (kvrail_send(planner, "conversation-42", version, receivers, 1, NULL, &ticket) != KVRAIL_OK) return fail("send");
  if (kvrail_receive(coder, 2 * SECOND, &delivery) != KVRAIL_OK) return fail("receive");
  wrong = show(delivery);
  /* A context that goes on from there shares the full block, and writes only what follows. */
  if (kvrail_allocate(coder, 1, SECOND, &more) != KVRAIL_OK) return fail("allocate");
  slot = kvrail_blocks_slot(more, 0, &bytes);
  memset(slot, 7, bytes);
  kvrail_blocks_start_at(more, 1);
  if (kvrail_commit(coder, "work", tokens, 100, more, delivery, SECOND, NULL) != KVRAIL_OK) return fail("commit");
  kvrail_blocks_destroy(more);
  kvrail_delivery_destroy(delivery, 0);
  if (kvrail_wait(planner, ticket, 2 * SECOND, &outcome, &count) != KVRAIL_OK) return fail("wait");
  printf("planner: %s\n", kvrail_code_name(outcome.code));
  kvrail_blocks_destroy(blocks);
  return wrong;
}

int main(int argc, char** argv) {
  const char* socket = argc > 1 ? argv[1] : NULL;
  kvrail_agent* planner = attach(socket, "planner", 3);
  kvrail_agent* coder = planner == NULL ? NULL : attach(socket, "coder", 1);
  const int result = coder == NULL ? fail("attach") : hand_over(planner, coder);
  kvrail_agent_destroy(coder);
  kvrail_agent_destroy(planner);
  return result;
}
