// What the agents of the demo have in common: they attach, load the model, exchange notes.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvrail/agent.h"
#include "perf/demo/kv_bridge.h"
#include "perf/demo/note.h"
#include "perf/model/facts.h"
#include "perf/model/model.h"

namespace kvrail::demo {

/// A document grows to this many facts; the model was trained on no more.
inline constexpr std::uint32_t kMostFacts = 96;
inline constexpr std::uint32_t kQuestionsPerRound = 3;
inline constexpr std::uint32_t kContextTokens = 1024;  // capacity of an agent's model session

struct AgentOptions {
  std::string role;  // coordinator, executor, verifier, clerk
  std::string name;
  std::string socket;
  std::string model;
  std::uint32_t block_tokens = 64;
  TimeNs prefill_per_token_ns = 0;
  std::vector<std::string> executors;  // coordinator: whom it hands work
  std::string clerk;                   // coordinator: who keeps the text
  std::string verifier;                // executor: who checks its answers
  std::string coordinator;             // verifier: who wants to know
  bool same_node = false;              // verifier: whether what it checks is on its own node
};

/// One agent with its model. Thread: its owner.
class Role {
 public:
  [[nodiscard]] static Result<Role> attach(const AgentOptions& options);

  Agent& agent() noexcept { return agent_; }
  [[nodiscard]] const model::FactWorld& world() const noexcept { return world_; }
  [[nodiscard]] const model::Model& model() const noexcept { return *model_; }
  [[nodiscard]] Pace pace() const noexcept { return pace_; }

  /// Sends a note and does not wait for its outcome.
  [[nodiscard]] Result<void> tell(std::string_view receiver, const Note& note, Task task,
                                  bool critical = true);
  /// Takes the notes of past tasks back.
  void drop_notes();
  /// Commits what the reader holds as the context `name`, in blocks of its own.
  [[nodiscard]] Result<Context> commit_all(const std::string& name, const Reader& reader,
                                           const Delivery* prefix);

 private:
  Role(std::unique_ptr<model::Model> model, model::FactWorld world, Agent agent, Pace pace)
      : model_(std::move(model)), world_(std::move(world)), agent_(std::move(agent)), pace_(pace) {}
  std::unique_ptr<model::Model> model_;  // sessions keep its address
  model::FactWorld world_;
  Agent agent_;
  Pace pace_;
  std::uint64_t note_count_ = 0;
  std::vector<std::string> notes_;  // committed, not dropped yet
};

/// Each runs until the demo ends it: 0 when asked to, 1 after an error, which is on standard error.
[[nodiscard]] int run_coordinator(const AgentOptions& options);
[[nodiscard]] int run_executor(const AgentOptions& options);
[[nodiscard]] int run_verifier(const AgentOptions& options);
[[nodiscard]] int run_clerk(const AgentOptions& options);

/// True once the demo has asked this process to end.
[[nodiscard]] bool asked_to_end() noexcept;
/// How long an agent sleeps in receive() before it looks whether it shall end.
inline constexpr std::chrono::milliseconds kLook{200};

/// Says that it is ready, then gives every delivery to `handle` until the demo ends this process.
[[nodiscard]] int serve(const AgentOptions& options, Role& role,
                        const std::function<Result<void>(Delivery)>& handle);

[[nodiscard]] std::string document_name(std::uint32_t task);
[[nodiscard]] std::string work_name(std::uint32_t task, std::string_view agent);
/// Prints the failure for the demo's log; always 1.
int fail(const AgentOptions& options, std::string_view what, const Error& error);

}  // namespace kvrail::demo
