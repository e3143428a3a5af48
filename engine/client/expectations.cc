// What an agent says beforehand.
#include "engine/client/state.h"

namespace kvrail {

using client::Deadline;
using client::Bytes;
using engine::ipc::Command;
using engine::ipc::SubmitRecord;

Result<void> Agent::will_need(std::string_view owner, std::string_view context, Nanoseconds in, double probability,
                              Nanoseconds timeout) {
  const Result<Name> from = make_name(owner);
  if (!from.ok()) return Error{from.status(), "owner '" + std::string(owner) + "': " + from.error().message};
  const Result<Name> name = make_name(context);
  if (!name.ok()) return Error{name.status(), "context '" + std::string(context) + "': " + name.error().message};
  if (in.count() < 0 || !(probability >= 0 && probability <= 1)) {
    return Error{{Code::invalid_argument}, "a context is needed in a time that is not negative, with a probability of 0 to 1"};
  }
  SubmitRecord record;
  record.command = Command::will_need;
  record.flags = engine::ipc::kFlagAnswer;
  record.name = *name;
  record.b = in.count();
  record.d = static_cast<std::uint32_t>(probability * 1e6);
  const Bytes payload = std::as_bytes(std::span{&*from, 1});
  auto reply = state_->call(record, {&payload, 1}, Deadline(timeout), "cannot expect the context");
  return reply.ok() ? Result<void>() : Result<void>(std::move(reply).error());
}

}  // namespace kvrail
