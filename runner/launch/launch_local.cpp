#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <iostream>
#include <map>
#include <optional>
#include <utility>

#include "core/environment.hpp"
#include "core/program.hpp"
#include "core/ranges.hpp"
#include "runner/launch/blocked_signals.hpp"
#include "runner/launch/job_folder.hpp"
#include "runner/launch/launch.hpp"

namespace stepcast {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const std::string& what) { throw RunError(what + ": " + std::strerror(errno)); }

/// SIGCHLD and the signals that this process forwards to its ranks; ignored ones (nohup) stay ignored.
std::vector<int> expected_signals() {
  std::vector<int> result{SIGCHLD};
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) result.push_back(signal);
  }
  return result;
}

/// Blocks the expected signals while it lives and delivers them through a file descriptor.
class SignalQueue {
 public:
  SignalQueue() {
    if (descriptor_ < 0) fail("cannot wait for signals");
  }
  ~SignalQueue() { ::close(descriptor_); }
  SignalQueue& operator=(SignalQueue&&) = delete;
  [[nodiscard]] int descriptor() const { return descriptor_; }

  /// The next signal, or 0.
  [[nodiscard]] int next() const {
    signalfd_siginfo info{};
    return ::read(descriptor_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  BlockedSignals blocked_{expected_signals()};
  int descriptor_ = ::signalfd(-1, &blocked_.mask(), SFD_CLOEXEC | SFD_NONBLOCK);
};

/// The ranks of one job on this machine.
class LocalJob {
 public:
  LocalJob(const std::vector<RankStart>& ranks, std::vector<std::string> argv,
           std::chrono::milliseconds grace)
      : argv_(std::move(argv)), grace_(grace) {
    for (RankStart own : ranks) {
      own.variables[kStoreVariable] = folder_.path();
      start(own);
    }
  }
  ExitCode wait() {
    while (running()) {
      wait_for_event();
      for (int signal = signals_.next(); signal != 0; signal = signals_.next()) {
        if (signal == SIGCHLD) continue;
        send_to_all(signal);
        result_ = static_cast<ExitCode>(128 + signal);
        if (!deadline_) deadline_ = Clock::now() + grace_;
      }
      forward_output();
      reap();
      if (deadline_ && Clock::now() >= *deadline_) send_to_all(SIGKILL);
    }
    forward_output();
    for (std::size_t rank = 1; rank < ranks_.size(); ++rank)
      if (!ranks_[rank].output.empty()) print_line(rank, ranks_[rank].output);
    return result_;
  }

 private:
  void start(const RankStart& own) {
    int space = -1;
    if (!own.network_namespace.empty()) {
      space = ::open(own.network_namespace.c_str(), O_RDONLY | O_CLOEXEC);
      if (space < 0) fail("cannot open network namespace " + own.network_namespace);
    }
    cpu_set_t cores{};
    for (const int core : own.cores) CPU_SET(static_cast<std::size_t>(core), &cores);
    const auto enter = [&] {
      return (space < 0 || ::setns(space, CLONE_NEWNET) == 0) &&
             (own.cores.empty() || ::sched_setaffinity(0, sizeof cores, &cores) == 0);
    };
    ranks_.emplace_back(
        ProgramStart{.words = argv_,
                     .file = own.program.empty() ? kOwnProgram : own.program,
                     .variables = own.variables,
                     .captured = ranks_.empty() ? Captured::kNothing : Captured::kOutputWithErrors,
                     .prepare = enter});
    if (space >= 0) ::close(space);
  }

  [[nodiscard]] bool running() const {
    return std::ranges::any_of(ranks_, [](const ChildProcess& rank) { return rank.running(); });
  }

  void wait_for_event() const {
    std::vector<pollfd> descriptors{{signals_.descriptor(), POLLIN, 0}};
    for (const ChildProcess& rank : ranks_)
      for (const int output : rank.descriptors()) descriptors.push_back({output, POLLIN, 0});
    int timeout = -1;
    if (deadline_) {
      constexpr int kRecheck = 20;  // after the deadline the killed ranks end within milliseconds
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(*deadline_ - Clock::now()).count();
      timeout = left > 0 ? static_cast<int>(left) + 1 : kRecheck;
    }
    ::poll(descriptors.data(), descriptors.size(), timeout);
  }

  static void print_line(std::size_t rank, const std::string& line) {
    std::cerr << "[rank " + std::to_string(rank) + "] " + line + "\n";
  }

  void forward_output() {
    for (std::size_t rank = 1; rank < ranks_.size(); ++rank) {
      std::string& text = ranks_[rank].output;
      ranks_[rank].read();
      const std::size_t end = text.rfind('\n') + 1;  // of whole lines; 0: there is none
      for (const std::string& line : split(text.substr(0, end))) print_line(rank, line);
      text.erase(0, end);
    }
  }

  void reap() {
    for (const auto [rank, process] : enumerated(ranks_)) {
      if (!process.ended() || process.exit_code() == 0 || result_ != ExitCode::kDone) continue;
      const int signal = process.ended_by();
      result_ = signal != 0 ? ExitCode::kFailed : static_cast<ExitCode>(process.exit_code());
      const std::string end =
          signal != 0 ? " was killed by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")"
                      : " ended with exit code " + std::to_string(process.exit_code());
      std::cerr << argv_.front() << ": rank " << rank << end
                << (running() ? "; waiting for the others to end" : "") << '\n';
      deadline_ = Clock::now() + grace_;
    }
  }

  void send_to_all(int signal) const {
    for (const ChildProcess& rank : ranks_) rank.send(signal);
  }

  SignalQueue signals_;
  JobFolder folder_;
  std::vector<std::string> argv_;
  std::chrono::milliseconds grace_;
  std::deque<ChildProcess> ranks_;
  std::optional<Clock::time_point> deadline_;
  ExitCode result_ = ExitCode::kDone;
};

}  // namespace

int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) fail("cannot open a socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const bool bound = ::bind(socket, generic, length) == 0 && ::getsockname(socket, generic, &length) == 0;
  ::close(socket);
  if (!bound) fail("cannot find a free port");
  return ntohs(address.sin_port);
}

std::map<std::string, std::string> rank_variables(const RankContext& rank) {
  return {{"RANK", std::to_string(rank.rank)},
          {"WORLD_SIZE", std::to_string(rank.world_size)},
          {"LOCAL_RANK", std::to_string(rank.local_rank)},
          {"LOCAL_WORLD_SIZE", std::to_string(rank.local_world_size)},
          {"MASTER_ADDR", rank.master_addr},
          {"MASTER_PORT", std::to_string(rank.master_port)}};
}

ExitCode launch_ranks(const std::vector<RankStart>& ranks, const std::vector<std::string>& argv,
                      std::chrono::milliseconds grace) {
  return LocalJob(ranks, argv, grace).wait();
}

ExitCode launch_local(int nproc, const std::vector<std::string>& argv, std::chrono::milliseconds grace) {
  std::vector<RankStart> ranks(nproc);
  RankContext own{.world_size = nproc, .local_world_size = nproc, .master_port = free_port()};
  for (RankStart& rank : ranks) {
    rank.variables = rank_variables(own);
    own.local_rank = ++own.rank;
  }
  return launch_ranks(ranks, argv, grace);
}

}  // namespace stepcast
