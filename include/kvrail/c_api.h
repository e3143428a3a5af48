/* kvrail for C and for languages that call C: the same as agent.h, in plain types.
 *
 * Threads: one thread at a time per agent and all that came from it.
 * Errors: every call that can fail returns a kvrail_code; kvrail_last_error() has one line about the
 * last failure on the calling thread. Outputs stay as they were when a call fails.
 * Time: timeouts and deadlines are nanoseconds; a timeout of 0 does not wait.
 * Structs: call the _init function first, it sets the size and the defaults; fields may be added at
 * the end in later versions, and the size tells which ones the caller knows. */
#ifndef KVRAIL_C_API_H
#define KVRAIL_C_API_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What happened; the numbers are those of kvrail/base/status.h and never change. */
typedef enum kvrail_code {
  KVRAIL_OK = 0,
  KVRAIL_INVALID_ARGUMENT = 1,
  KVRAIL_NOT_FOUND = 2,
  KVRAIL_ALREADY_EXISTS = 3,
  KVRAIL_PERMISSION_DENIED = 4,
  KVRAIL_NOT_BUILT_IN = 5,
  KVRAIL_UNSUPPORTED = 6,
  KVRAIL_OUT_OF_MEMORY = 7,
  KVRAIL_OUT_OF_CAPACITY = 8,
  KVRAIL_QUOTA_EXCEEDED = 9,
  KVRAIL_TOO_LARGE = 10,
  KVRAIL_TIMED_OUT = 11,
  KVRAIL_CANCELLED = 12,
  KVRAIL_PEER_DOWN = 13,
  KVRAIL_PEER_RESTARTED = 14,
  KVRAIL_LANE_LOST = 15,
  KVRAIL_REJECTED = 16,
  KVRAIL_CORRUPT = 17,
  KVRAIL_LAYOUT_MISMATCH = 18,
  KVRAIL_GENERATION_MISMATCH = 19,
  KVRAIL_PROTOCOL_ERROR = 20,
  KVRAIL_VERSION_MISMATCH = 21,
  KVRAIL_AUTHENTICATION_FAILED = 22,
  KVRAIL_ADDRESS_IN_USE = 23,
  KVRAIL_UNREACHABLE = 24,
  KVRAIL_IO_ERROR = 25,
  KVRAIL_LIMIT = 26,
  KVRAIL_SHUTTING_DOWN = 27,
  KVRAIL_UNKNOWN = 28,
  KVRAIL_BUSY = 29,
  KVRAIL_INTERNAL = 30
} kvrail_code;

const char* kvrail_code_name(kvrail_code code);
const char* kvrail_last_error(void);

typedef enum kvrail_dtype {
  KVRAIL_BF16 = 1,
  KVRAIL_FP16 = 2,
  KVRAIL_FP32 = 3,
  KVRAIL_FP8_E4M3 = 4,
  KVRAIL_FP8_E5M2 = 5
} kvrail_dtype;

typedef enum kvrail_medium {
  KVRAIL_MEDIUM_AUTOMATIC = 0,
  KVRAIL_MEDIUM_TOKENS = 1,
  KVRAIL_MEDIUM_FULL = 2,
  KVRAIL_MEDIUM_LOSSLESS = 3,
  KVRAIL_MEDIUM_INT8 = 4,
  KVRAIL_MEDIUM_INT4 = 5,
  KVRAIL_MEDIUM_EXACT = 6,
  KVRAIL_MEDIUM_TOPK = 7,
  KVRAIL_MEDIUM_WINDOW = 8,
  KVRAIL_MEDIUM_LOWRANK = 9,
  KVRAIL_MEDIUM_REFERENCE = 10,
  KVRAIL_MEDIUM_SUMMARY = 11,
  KVRAIL_MEDIUM_SPLIT = 12
} kvrail_medium;
#define KVRAIL_MEDIUM_BIT(medium) (UINT32_C(1) << (medium))

typedef struct kvrail_layout {
  uint64_t model_id[2];
  uint32_t layers;
  uint32_t kv_heads;
  uint32_t head_dim;
  uint32_t block_tokens;
  uint32_t dtype; /* kvrail_dtype */
  float rope_base;
  float rope_scale;
} kvrail_layout;

typedef struct kvrail_compute {
  uint64_t prefill_fixed_ns;
  uint64_t prefill_per_token_ns;
  uint64_t prefill_quadratic_ns_q20;
  uint64_t decode_per_token_ns;
} kvrail_compute;

typedef struct kvrail_attach_options {
  size_t size;
  const char* socket_path; /* NULL: the default */
  const char* name;
  const char* tenant;      /* NULL: what the engine's policy gives this user */
  uint32_t role;           /* weight: executor 1, verifier 2, coordinator 3, or another */
  kvrail_layout layout;
  uint32_t accepted;       /* KVRAIL_MEDIUM_BITs */
  uint64_t tokenizer[2];
  kvrail_compute compute;
  uint64_t arena_bytes;    /* 0: the engine's default */
  uint32_t scratch_bytes;  /* 0: the default */
  uint64_t summary_bytes;  /* 0: this agent makes no summaries */
  int64_t summary_ns;
  int64_t timeout_ns;
} kvrail_attach_options;

typedef struct kvrail_agent kvrail_agent;
typedef struct kvrail_blocks kvrail_blocks;
typedef struct kvrail_delivery kvrail_delivery;

void kvrail_attach_options_init(kvrail_attach_options* options);
kvrail_code kvrail_attach(const kvrail_attach_options* options, kvrail_agent** agent);
/* Leaves at once. Blocks and deliveries may be destroyed before or after. NULL is allowed. */
void kvrail_agent_destroy(kvrail_agent* agent);
kvrail_code kvrail_detach(kvrail_agent* agent, int64_t timeout_ns);
kvrail_code kvrail_reattach(kvrail_agent* agent, int64_t timeout_ns);

kvrail_code kvrail_begin_task(kvrail_agent* agent, const char* workflow, int64_t deadline_ns, uint64_t* task);
kvrail_code kvrail_end_task(kvrail_agent* agent, uint64_t task);

/* Block slots to write KV into; slots that no commit took go back with kvrail_blocks_destroy(). */
kvrail_code kvrail_allocate(kvrail_agent* agent, uint32_t count, int64_t timeout_ns, kvrail_blocks** blocks);
/* Memory of an fd, used in place where the engine can, else copied. */
kvrail_code kvrail_import_fd(kvrail_agent* agent, int fd, uint64_t offset, uint64_t bytes, int64_t timeout_ns,
                             kvrail_blocks** blocks);
kvrail_code kvrail_import_pages(kvrail_agent* agent, void* pages, uint64_t bytes, int64_t timeout_ns,
                                kvrail_blocks** blocks);
size_t kvrail_blocks_count(const kvrail_blocks* blocks);
uint64_t kvrail_blocks_copied_bytes(const kvrail_blocks* blocks);
/* NULL when there is no such slot. */
void* kvrail_blocks_slot(const kvrail_blocks* blocks, size_t index, size_t* bytes);
/* Takes over the slots of `more`, which is empty afterwards and still to be destroyed. */
void kvrail_blocks_append(kvrail_blocks* blocks, kvrail_blocks* more);
/* Which block of the context the first slot is. Those before it are not copied: kvrail_commit() shares them with
 * its prefix, or, without one, with the context's version before. */
void kvrail_blocks_start_at(kvrail_blocks* blocks, uint32_t block);
void kvrail_blocks_destroy(kvrail_blocks* blocks);

/* blocks NULL: the prefix, or the version before, holds all of it. prefix NULL: computed on nothing that was
 * delivered. */
kvrail_code kvrail_commit(kvrail_agent* agent, const char* context, const uint32_t* tokens, size_t token_count,
                          kvrail_blocks* blocks, const kvrail_delivery* prefix, int64_t timeout_ns,
                          uint64_t* version);
kvrail_code kvrail_drop_context(kvrail_agent* agent, const char* context);
/* What the tokens from first_token on mean, larger is more; NaN and what was never given is least. version 0: the
 * newest that this agent has committed. */
kvrail_code kvrail_set_importance(kvrail_agent* agent, const char* context, uint64_t version, uint32_t first_token,
                                  const float* importance, size_t count, int64_t timeout_ns);

typedef struct kvrail_send_options {
  size_t size;
  uint64_t task;
  int64_t deadline_ns;   /* from the call; 0: none */
  uint32_t medium;       /* kvrail_medium, a wish */
  int critical;
  int background;
  double fidelity_floor; /* 0 to 1 */
  uint32_t reservation;  /* of kvrail_reserve(), 0: none; not of a fetch */
} kvrail_send_options;

typedef struct kvrail_outcome {
  uint32_t receiver;
  kvrail_code code;
  uint32_t medium;
  uint64_t transfer;
  uint64_t bytes;
  uint64_t missing_blocks;
  int64_t predicted_ns;
  int64_t observed_ns;
} kvrail_outcome;

/* The agent will ask for the owner's context in so long, with that probability (0: not any more): what of it has left the
 * node's memory for a tier is brought back in time. */
kvrail_code kvrail_will_need(kvrail_agent* agent, const char* owner, const char* context, int64_t in_ns, double probability,
                             int64_t timeout_ns);

/* One step of a workflow: whose turn it is, and how long that takes about, 0: not known. */
typedef struct kvrail_workflow_step {
  const char* agent;
  int64_t duration_ns;
} kvrail_workflow_step;
/* Which step hands over to which: indices. */
typedef struct kvrail_workflow_hand_over {
  uint32_t from;
  uint32_t to;
} kvrail_workflow_hand_over;

/* What tasks of that workflow are like; at most 64 steps and 256 hand-overs, without circles. */
kvrail_code kvrail_describe_workflow(kvrail_agent* agent, const char* workflow, const kvrail_workflow_step* steps,
                                     size_t step_count, const kvrail_workflow_hand_over* hand_overs,
                                     size_t hand_over_count, int64_t timeout_ns);

/* Bytes per second: what was asked for, what may still be reserved of the lane, and half of the lane. */
typedef struct kvrail_reservation_figures {
  uint64_t needed;
  uint64_t available;
  uint64_t half;
} kvrail_reservation_figures;

/* Sets a part of the lane to the receiver's node aside: of each period, which start offset_ns after their multiples of
 * CLOCK_MONOTONIC, so many bytes of sends that name it go before all else. KVRAIL_LIMIT: all reservations together may
 * take half of the lane. figures may be NULL; they are set also when it is refused. */
kvrail_code kvrail_reserve(kvrail_agent* agent, const char* receiver, uint64_t bytes, int64_t period_ns,
                           int64_t offset_ns, int64_t timeout_ns, kvrail_reservation_figures* figures,
                           uint32_t* reservation);
kvrail_code kvrail_release_reservation(kvrail_agent* agent, uint32_t reservation);
/* 1 and which one and why, if the engine has ended one since; 0 if not. */
int kvrail_reservation_ended(kvrail_agent* agent, uint32_t* reservation, kvrail_code* why);

void kvrail_send_options_init(kvrail_send_options* options);
/* version 0: the newest. options NULL: the defaults. */
kvrail_code kvrail_send(kvrail_agent* agent, const char* context, uint64_t version,
                        const char* const* receivers, size_t receiver_count,
                        const kvrail_send_options* options, uint64_t* ticket);
kvrail_code kvrail_fetch(kvrail_agent* agent, const char* owner, const char* context, uint64_t version,
                         const kvrail_send_options* options, uint64_t* ticket);
kvrail_code kvrail_cancel(kvrail_agent* agent, uint64_t ticket);
/* *count: room in outcomes before, number of outcomes after. Too little room loses the rest. */
kvrail_code kvrail_wait(kvrail_agent* agent, uint64_t ticket, int64_t timeout_ns, kvrail_outcome* outcomes,
                        size_t* count);
void kvrail_forget(kvrail_agent* agent, uint64_t ticket);

/* A context that was handed to this agent; what it shows is valid until it is destroyed. */
kvrail_code kvrail_receive(kvrail_agent* agent, int64_t timeout_ns, kvrail_delivery** delivery);

typedef struct kvrail_delivery_info {
  size_t size;
  const char* owner;
  const char* context;
  uint64_t version;
  uint32_t medium;
  int critical;
  kvrail_layout layout;
  const uint32_t* tokens;
  size_t token_count;
  size_t block_count;
  uint32_t first_token;
  uint32_t summary_kind;
  const void* summary;
  size_t summary_bytes;
  double epsilon;
  uint64_t task;
  uint64_t transfer;
  uint64_t bytes;
  uint64_t missing_blocks;
  int64_t predicted_ns;
  int64_t observed_ns;
  const uint32_t* positions; /* topk: of every row, block after block; else none */
  size_t position_count;
} kvrail_delivery_info;

typedef struct kvrail_block {
  const void* data;
  size_t bytes;
  uint32_t tokens;
  uint32_t position;
  double epsilon;
} kvrail_block;

/* info->size must be set by the caller to sizeof(kvrail_delivery_info). */
kvrail_code kvrail_delivery_get(const kvrail_delivery* delivery, kvrail_delivery_info* info);
kvrail_code kvrail_delivery_block(const kvrail_delivery* delivery, size_t index, kvrail_block* block);
/* Of a delivery of the medium split: the next tokens to compute while the tail arrives. *tokens 0: there are none left,
 * and the delivery has the blocks that came (get its info anew). KVRAIL_TIMED_OUT: claim again; another error (the
 * transfer's deadline: KVRAIL_CANCELLED) ends the split, and what no block covers is to be computed. */
kvrail_code kvrail_claim(kvrail_agent* agent, kvrail_delivery* delivery, uint32_t most_tokens, int64_t timeout_ns,
                         uint32_t* first_token, uint32_t* tokens);
/* recompute_ns: what it took to compute what did not come as KV; 0 if nothing. NULL is allowed. */
void kvrail_delivery_destroy(kvrail_delivery* delivery, int64_t recompute_ns);

/* Called inside calls that wait, on their thread. Writes up to capacity bytes of a summary into
 * out, sets *kind (0 text, 1 token ids, 2 vector of floats) and returns the number of bytes, 0 for
 * no summary. */
typedef size_t (*kvrail_summary_function)(void* user, const char* context, uint64_t version,
                                          const uint32_t* tokens, size_t token_count, void* out,
                                          size_t capacity, uint32_t* kind);
void kvrail_on_summary(kvrail_agent* agent, kvrail_summary_function function, void* user);

typedef struct kvrail_probe {
  size_t size;
  uint32_t queue_length;
  uint32_t compute_load_ppm;
  int64_t backlog_ns;
  uint64_t cache_bytes;
  int64_t idle_until_ns; /* CLOCK_MONOTONIC, 0: not known */
  kvrail_compute compute;
} kvrail_probe;
void kvrail_probe_init(kvrail_probe* probe);
void kvrail_update_probe(kvrail_agent* agent, const kvrail_probe* probe);

/* For event loops: sleep on the descriptor only after kvrail_arm() returned 1; then kvrail_poll(). */
int kvrail_event_fd(const kvrail_agent* agent);
int kvrail_arm(kvrail_agent* agent);
kvrail_code kvrail_poll(kvrail_agent* agent);

#ifdef __cplusplus
}
#endif
#endif
