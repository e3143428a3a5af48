// kvrailctl: shows what an engine on this machine does. It only reads the status page, a block of
// shared memory that the engine refreshes, so looking never slows the engine down.
//
// Exit codes: 0 shown; 1 no engine there, or no right to ask it; 2 wrong usage; 3 no such transfer.
#include <CLI/CLI.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "engine/client/socket_channel.h"
#include "engine/ctl/views.h"
#include "kvrail/agent.h"

namespace kvrail::engine::ctl {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr int kExitNotFound = 3;

struct Arguments {
  std::string socket = kDefaultSocketPath;
  bool json = false;
  std::uint64_t transfer = 0;
};

int complain(const Error& error) {
  const std::string& text = error.message.empty() ? std::string(name(error.status.code)) : error.message;
  std::fprintf(stderr, "kvrailctl: %s\n", text.c_str());
  return kExitFailed;
}

int print(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  return written ? 0 : complain(Error{{Code::io_error, Scope::engine, errno},
                                      std::string("cannot write to standard output: ") + std::strerror(errno)});
}

Result<std::unique_ptr<StatusData>> load(const std::string& socket) {
  Result<client::ArenaMap> map = client::map_status_page(socket, 5 * kSecondNs);
  if (!map.ok()) return std::move(map).error();
  const StatusPage* page = as_status_page(map->base, map->bytes);
  auto data = std::make_unique<StatusData>();
  Result<std::unique_ptr<StatusData>> result = Error{
      {Code::version_mismatch}, "the engine at " + socket + " is of another version: use its own kvrailctl"};
  if (page != nullptr) {
    // A refresh takes microseconds; a writer that is always inside has died there.
    result = read_status_page(*page, *data, 1'000'000)
                 ? Result<std::unique_ptr<StatusData>>(std::move(data))
                 : Error{{Code::busy}, "the status page of " + socket + " is never at rest: is the engine stuck?"};
  }
  client::unmap(*map);
  return result;
}

const StatusTransfer* find(const StatusData& data, std::uint64_t transfer) {
  // The receiver's row tells why; it is the one to show where both directions are here.
  const StatusTransfer* found = nullptr;
  for_each_transfer(data, [&](const StatusTransfer& row) {
    if (row.transfer == transfer && (found == nullptr || row.line_count > 0)) found = &row;
  });
  return found;
}

int show(const Arguments& arguments, View view) {
  const auto data = load(arguments.socket);
  if (!data.ok()) return complain(data.error());
  return print(arguments.json ? json_of(**data, view) : text_of(**data, view));
}

int explain(const Arguments& arguments) {
  const auto data = load(arguments.socket);
  if (!data.ok()) return complain(data.error());
  const StatusTransfer* row = nullptr;
  if (arguments.transfer != 0) {
    row = find(**data, arguments.transfer);
  } else {
    for_each_transfer(**data, [&row](const StatusTransfer& each) { row = &each; });
  }
  if (row == nullptr) {
    std::fprintf(stderr, "kvrailctl: no such transfer here; 'kvrailctl transfers' lists the last %zu\n",
                 kStatusTransfers);
    return kExitNotFound;
  }
  return print(arguments.json ? json_of(**data, *row) : text_of(**data, *row));
}

}  // namespace
}  // namespace kvrail::engine::ctl

int main(int argc, char** argv) {
  using namespace kvrail::engine::ctl;
  CLI::App app{"Shows what a kvrail engine on this machine does."};
  app.require_subcommand(1);
  app.fallthrough();
  Arguments arguments;
  app.add_option("-s,--socket", arguments.socket, "the engine's attach socket")->capture_default_str();
  app.add_flag("--json", arguments.json, "print JSON");
  int code = 0;
  struct Command {
    const char* name;
    const char* help;
    View view;
  };
  for (const Command& command :
       {Command{"status", "the node: counters, memory, peers", View::status},
        Command{"agents", "agents that the node knows", View::agents},
        Command{"lanes", "lanes to peers: rate, round trip, bytes in flight", View::lanes},
        Command{"tasks", "tasks of local agents", View::tasks},
        Command{"transfers", "the last transfers: medium, bytes, predicted and observed time", View::transfers}}) {
    app.add_subcommand(command.name, command.help)->callback([&code, &arguments, view = command.view] {
      code = show(arguments, view);
    });
  }
  CLI::App* why = app.add_subcommand("explain", "why a transfer went as it did: every medium that was weighed");
  why->add_option("transfer", arguments.transfer, "id of the transfer; the last one if left out");
  why->callback([&code, &arguments] { code = explain(arguments); });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  return code;
}
