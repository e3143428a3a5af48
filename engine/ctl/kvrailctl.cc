// kvrailctl: shows what an engine on this machine does. It only reads the status page, a block of
// shared memory that the engine refreshes, so looking never slows the engine down.
//
// Exit codes: 0 shown; 1 no engine there, or no right to ask it; 2 wrong usage; 3 no such transfer.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/client/socket_channel.h"
#include "engine/ctl/pick.h"
#include "engine/ctl/views.h"
#include "kvrail/agent.h"
#include "kvrail/base/time.h"
#include "kvrail_features.h"

namespace kvrail::engine::ctl {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr int kExitNotFound = 3;

struct Arguments {
  std::string socket = kDefaultSocketPath;
  bool json = false;
  Choice choice;  // of explain
};

int complain(const Error& error) {
  const std::string& text =
      error.message.empty() ? std::string(name(error.status.code)) : error.message;
  std::fprintf(stderr, "kvrailctl: %s\n", text.c_str());
  return kExitFailed;
}

int print(const std::string& text) {
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  return written ? 0
                 : complain(Error{
                       {Code::io_error, Scope::engine, errno},
                       std::string("cannot write to standard output: ") + std::strerror(errno)});
}

Result<std::unique_ptr<StatusData>> load(const std::string& socket) {
  Result<client::ArenaMap> map = client::map_status_page(socket, 5 * kSecondNs);
  if (!map.ok()) return std::move(map).error();
  const StatusPage* page = as_status_page(map->base, map->bytes);
  auto data = std::make_unique<StatusData>();
  Result<std::unique_ptr<StatusData>> result =
      Error{{Code::version_mismatch},
            "the engine at " + socket + " is of another version: use its own kvrailctl"};
  if (page != nullptr) {
    // A refresh takes microseconds; a writer that is always inside has died there.
    result =
        read_status_page(*page, *data, 1'000'000)
            ? Result<std::unique_ptr<StatusData>>(std::move(data))
            : Error{{Code::busy},
                    "the status page of " + socket + " is never at rest: is the engine stuck?"};
  }
  client::unmap(*map);
  // The page stands still while nothing happens; times count on.
  if (result.ok()) (*result)->refreshed_ns = std::max((*result)->refreshed_ns, SteadyClock().now_ns());
  return result;
}

int show(const Arguments& arguments, View view) {
  const auto data = load(arguments.socket);
  if (!data.ok()) return complain(data.error());
  return print(arguments.json ? json_of(**data, view) : text_of(**data, view));
}

int explain(const Arguments& arguments) {
  const auto data = load(arguments.socket);
  if (!data.ok()) return complain(data.error());
  const Picked picked = pick_transfer(**data, arguments.choice);
  if (picked.row == nullptr) {
    std::fprintf(stderr,
                 "kvrailctl: no such transfer here; 'kvrailctl transfers' lists the last %zu\n",
                 kStatusTransfers);
    return kExitNotFound;
  }
  if (const std::string more = ambiguity_text(picked); !more.empty())
    std::fprintf(stderr, "kvrailctl: %s\n", more.c_str());
  return print(arguments.json ? json_of(**data, *picked.row) : text_of(**data, *picked.row));
}

struct Command {
  const char* name;
  const char* help;
  View view;
};
constexpr std::array kCommands{
    Command{"status", "the node: counters, memory, peers", View::status},
    Command{"agents", "agents that the node knows", View::agents},
    Command{"lanes", "lanes to peers: rate, round trip, bytes in flight", View::lanes},
    Command{"peers", "peers of the configuration, connected or not and why, and nodes that are known", View::peers},
    Command{"tasks", "tasks of local agents", View::tasks},
    Command{"transfers", "the last transfers: medium, bytes, predicted and observed time",
            View::transfers},
    Command{"reservations", "what agents have set aside of lanes, and what went by it", View::reservations},
    Command{"contexts", "contexts that are kept here, and where their KV is", View::contexts},
    Command{"tiers", "memory beyond memory: how full, how fast, what came back from it", View::tiers},
    Command{"prefetch", "what agents said they will need, and what became of it", View::prefetch}};

void add_id(CLI::App& command, const char* name, std::optional<std::uint64_t>& out,
            const char* help) {
  command
      .add_option_function<std::string>(
          name, [&out](const std::string& text) { out = *parse_id(text); }, help)
      ->check([](const std::string& text) {
        const auto id = parse_id(text);
        return id.ok() ? std::string() : id.error().message;
      });
}

// The exit code of a command line that cannot be taken: what is wrong, in one line, or the help
// that was asked for.
int refuse(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);
  std::string what = error.what();
  if (app.get_subcommands().empty()) {
    std::string names;
    for (const CLI::App* command : app.get_subcommands({}))
      names += (names.empty() ? "" : ", ") + command->get_name();
    const std::vector<std::string> left = app.remaining();
    const auto word = std::find_if(left.begin(), left.end(),
                                   [](const std::string& text) { return !text.starts_with('-'); });
    if (word != left.end()) {
      what = std::string("there is no command '")
                 .append(*word)
                 .append("'; commands are ")
                 .append(names);
    } else if (left.empty()) {
      what = std::string("a command is missing; commands are ").append(names);
    }
  }
  std::fprintf(stderr, "kvrailctl: %s; 'kvrailctl --help' tells more\n", what.c_str());
  return kExitUsage;
}

}  // namespace
}  // namespace kvrail::engine::ctl

int main(int argc, char** argv) {
  using namespace kvrail::engine::ctl;
  CLI::App app{"Shows what a kvrail engine on this machine does."};
  app.require_subcommand(1);
  app.fallthrough();
  app.set_version_flag("--version", std::string("kvrailctl ") + KVRAIL_VERSION);
  app.footer(
      "Exit codes: 0 shown; 1 no engine there, or no right to ask it; 2 wrong usage; 3 no such "
      "transfer.");
  Arguments arguments;
  app.add_option("-s,--socket", arguments.socket, "the engine's attach socket")
      ->capture_default_str();
  app.add_flag("--json", arguments.json, "print JSON");
  int code = 0;
  for (const Command& command : kCommands) {
    app.add_subcommand(command.name, command.help)
        ->callback([&code, &arguments, view = command.view] { code = show(arguments, view); });
  }
  CLI::App* why =
      app.add_subcommand("explain", "why a transfer went as it did: every medium that was weighed");
  add_id(*why, "transfer", arguments.choice.transfer,
         "id of the transfer, decimal or 0x...; the last one if left out");
  why->add_option("--way", arguments.choice.way,
                  "of several with this id, the one that came in, went out or is local")
      ->check(CLI::IsMember({"in", "out", "local"}));
  add_id(*why, "--peer", arguments.choice.peer,
         "of several with this id, the one from or to this node");
  why->callback([&code, &arguments] { code = explain(arguments); });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return refuse(app, error);
  }
  return code;
}
