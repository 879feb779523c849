#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <iostream>
#include <map>
#include <optional>
#include <utility>

#include "runner/job_folder.hpp"
#include "runner/launch.hpp"

extern char** environ;  // NOLINT: POSIX declares it nowhere

namespace stepcast {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const std::string& what) { throw RunError(what + ": " + std::strerror(errno)); }

/// A rank under way and the pipe that its output arrives on.
struct Child {
  pid_t pid = -1;
  int output = -1;      ///< -1 for rank 0, which keeps this program's stdout and stderr
  std::string pending;  ///< an unfinished line
  bool running = true;
};

std::vector<std::string> child_environment(const std::map<std::string, std::string>& own) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : own) variables[name] = value;
  std::vector<std::string> result;
  result.reserve(variables.size());
  for (const auto& [name, value] : variables) result.emplace_back(name).append("=").append(value);
  return result;
}

std::optional<cpu_set_t> core_set(const std::vector<int>& cores) {
  if (cores.empty()) return std::nullopt;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(static_cast<std::size_t>(core), &set);
  return set;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

/// Signals that this process passes on to its ranks; one that is ignored (nohup) stays ignored.
std::vector<int> forwarded_signals() {
  std::vector<int> result;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) result.push_back(signal);
  }
  return result;
}

/// Blocks SIGCHLD and the forwarded signals while it lives and delivers them through a file descriptor.
class SignalQueue {
 public:
  SignalQueue() {
    sigset_t mask{};
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    for (const int signal : forwarded_signals()) sigaddset(&mask, signal);
    sigprocmask(SIG_BLOCK, &mask, &before_);
    descriptor_ = ::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (descriptor_ < 0) fail("cannot wait for signals");
  }
  ~SignalQueue() {
    ::close(descriptor_);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  SignalQueue(SignalQueue&&) = delete;
  SignalQueue& operator=(SignalQueue&&) = delete;

  [[nodiscard]] int descriptor() const { return descriptor_; }

  /// The next signal, or 0.
  [[nodiscard]] int next() const {
    signalfd_siginfo info{};
    return ::read(descriptor_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  int descriptor_ = -1;
  sigset_t before_{};
};

/// The ranks of one job on this machine.
class LocalJob {
 public:
  LocalJob(const std::vector<RankStart>& ranks, std::vector<std::string> argv,
           std::chrono::milliseconds grace)
      : argv_(std::move(argv)), grace_(grace) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      RankStart own = ranks[rank];
      own.variables[kStoreVariable] = folder_.path();
      start(static_cast<int>(rank), own);
    }
  }
  ~LocalJob() {
    send_to_all(SIGKILL);
    for (Child& child : children_) {
      if (child.running) ::waitpid(child.pid, nullptr, 0);
      if (child.output >= 0) ::close(child.output);
    }
  }
  LocalJob(const LocalJob&) = delete;
  LocalJob& operator=(const LocalJob&) = delete;
  LocalJob(LocalJob&&) = delete;
  LocalJob& operator=(LocalJob&&) = delete;

  ExitCode wait() {
    while (running()) {
      wait_for_event();
      for (int signal = signals_.next(); signal != 0; signal = signals_.next())
        if (signal != SIGCHLD) interrupt(signal);
      forward_output();
      reap();
      if (deadline_ && Clock::now() >= *deadline_) send_to_all(SIGKILL);
    }
    forward_output();
    for (std::size_t rank = 1; rank < children_.size(); ++rank)
      if (!children_[rank].pending.empty()) print_line(rank, children_[rank].pending);
    return result_;
  }

 private:
  void start(int rank, const RankStart& own) {
    std::vector<std::string> words = argv_;
    std::vector<std::string> variables = child_environment(own.variables);
    const std::vector<char*> argv = pointers(words);
    const std::vector<char*> envp = pointers(variables);
    std::array<int, 2> pipe{-1, -1};
    if (rank > 0 && ::pipe2(pipe.data(), O_CLOEXEC) != 0) fail("cannot open a pipe");
    int space = -1;
    if (!own.network_namespace.empty()) {
      space = ::open(own.network_namespace.c_str(), O_RDONLY | O_CLOEXEC);
      if (space < 0) fail("cannot open network namespace " + own.network_namespace);
    }
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) fail("cannot start rank " + std::to_string(rank));
    if (pid == 0) become_rank(parent, pipe[1], space, core_set(own.cores), argv, envp);
    if (space >= 0) ::close(space);
    if (rank > 0) {
      ::close(pipe[1]);
      ::fcntl(pipe[0], F_SETFL, O_NONBLOCK);
    }
    children_.push_back({pid, pipe[0], "", true});
  }

  /// In the child: async-signal-safe calls only.
  [[noreturn]] static void become_rank(pid_t parent, int output, int space,
                                       const std::optional<cpu_set_t>& cores, const std::vector<char*>& argv,
                                       const std::vector<char*>& envp) {
    constexpr int kCannotEnter = 126;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    if (space >= 0 && ::setns(space, CLONE_NEWNET) != 0) ::_exit(kCannotEnter);
    if (cores) ::sched_setaffinity(0, sizeof *cores, &*cores);
    sigset_t none{};
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    if (output >= 0) {
      const int nothing = ::open("/dev/null", O_RDONLY);
      ::dup2(nothing, STDIN_FILENO);
      ::dup2(output, STDOUT_FILENO);
      ::dup2(output, STDERR_FILENO);
    }
    ::execve("/proc/self/exe", argv.data(), envp.data());
    ::_exit(127);  // the shell's code for a command that could not be started
  }

  [[nodiscard]] bool running() const {
    return std::any_of(children_.begin(), children_.end(), [](const Child& child) { return child.running; });
  }

  void wait_for_event() const {
    std::vector<pollfd> descriptors{{signals_.descriptor(), POLLIN, 0}};
    for (const Child& child : children_)
      if (child.output >= 0) descriptors.push_back({child.output, POLLIN, 0});
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
    std::array<char, 4096> buffer{};
    for (std::size_t rank = 0; rank < children_.size(); ++rank) {
      Child& child = children_[rank];
      while (child.output >= 0) {
        const ssize_t count = ::read(child.output, buffer.data(), buffer.size());
        if (count < 0) break;  // nothing more for now
        if (count == 0) {
          ::close(child.output);
          child.output = -1;
          break;
        }
        child.pending.append(buffer.data(), static_cast<std::size_t>(count));
        std::size_t begin = 0;
        for (std::size_t end = child.pending.find('\n'); end != std::string::npos;
             begin = end + 1, end = child.pending.find('\n', begin))
          print_line(rank, child.pending.substr(begin, end - begin));
        child.pending.erase(0, begin);
      }
    }
  }

  void reap() {
    for (std::size_t rank = 0; rank < children_.size(); ++rank) {
      Child& child = children_[rank];
      int status = 0;
      if (!child.running || ::waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
      child.running = false;
      const bool killed = WIFSIGNALED(status);
      if ((!killed && WEXITSTATUS(status) == 0) || result_ != ExitCode::kDone) continue;
      result_ = killed ? ExitCode::kFailed : static_cast<ExitCode>(WEXITSTATUS(status));
      const std::string end = killed ? " was killed by signal " + std::to_string(WTERMSIG(status)) + " (" +
                                           strsignal(WTERMSIG(status)) + ")"
                                     : " ended with exit code " + std::to_string(WEXITSTATUS(status));
      std::cerr << argv_.front() << ": rank " << rank << end
                << (running() ? "; waiting for the others to end" : "") << '\n';
      deadline_ = Clock::now() + grace_;
    }
  }

  void interrupt(int signal) {
    send_to_all(signal);
    result_ = static_cast<ExitCode>(128 + signal);
    if (!deadline_) deadline_ = Clock::now() + grace_;
  }

  void send_to_all(int signal) const {
    for (const Child& child : children_)
      if (child.running) ::kill(child.pid, signal);
  }

  SignalQueue signals_;
  JobFolder folder_;
  std::vector<std::string> argv_;
  std::chrono::milliseconds grace_;
  std::vector<Child> children_;
  std::optional<Clock::time_point> deadline_;
  ExitCode result_ = ExitCode::kDone;
};

}  // namespace

/// A TCP port of the loopback interface that nobody listens on now.
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
  LocalJob job(ranks, argv, grace);
  return job.wait();
}

ExitCode launch_local(int nproc, const std::vector<std::string>& argv, std::chrono::milliseconds grace) {
  const int port = free_port();
  std::vector<RankStart> ranks;
  ranks.reserve(static_cast<std::size_t>(nproc));
  for (int rank = 0; rank < nproc; ++rank)
    ranks.push_back({rank_variables({.rank = rank,
                                     .world_size = nproc,
                                     .local_rank = rank,
                                     .local_world_size = nproc,
                                     .master_port = port,
                                     .store_folder = "",
                                     .source = ""}),
                     "",
                     {}});
  return launch_ranks(ranks, argv, grace);
}

}  // namespace stepcast
