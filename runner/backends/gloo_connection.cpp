#include "runner/backends/gloo_connection.hpp"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

namespace stepcast {
namespace {

/// Gloo's view of our store. Its keys get a prefix: ours and those of other groups do not collide with them.
class GlooStore : public gloo::rendezvous::Store {
 public:
  GlooStore(stepcast::Store& store, std::string prefix) : store_(store), prefix_(std::move(prefix)) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set(prefix_ + key, data);
  }
  std::vector<char> get(const std::string& key) override { return store_.get(prefix_ + key); }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) store_.get(prefix_ + key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& /*timeout*/) override {
    wait(keys);  // the store has its own timeout
  }

 private:
  stepcast::Store& store_;
  std::string prefix_;
};

/// Two processes with the same text see the same loopback interface: host and network namespace.
std::string network_identity() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  std::error_code ignored;
  return std::string(name.data()) + " " +
         std::filesystem::read_symlink("/proc/self/ns/net", ignored).string();
}

bool all_on_one_host(const BackendConfig& config) {
  const std::string own = network_identity();
  config.store->set("host/" + std::to_string(config.rank), {own.begin(), own.end()});
  bool same = true;
  for (int rank = 0; rank < config.world_size; ++rank) {
    const std::vector<char> other = config.store->get("host/" + std::to_string(rank));
    same = same && std::string(other.begin(), other.end()) == own;
  }
  return same;
}

/// The address of this host on the route to `peer`: connecting a datagram socket chooses the route and sends
/// nothing. \throws RunError when `peer` is unknown or unreachable
std::string address_towards(const std::string& peer) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(peer.c_str(), "9", &hints, &found); error != 0)
    throw RunError("the address of rank 0, '" + peer + "', is unknown: " + ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  const int socket = ::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage local{};
  auto* const address = reinterpret_cast<sockaddr*>(&local);
  socklen_t length = sizeof local;
  std::array<char, NI_MAXHOST> text{};
  const bool ok = socket >= 0 && ::connect(socket, found->ai_addr, found->ai_addrlen) == 0 &&
                  ::getsockname(socket, address, &length) == 0 &&
                  ::getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  if (socket >= 0) ::close(socket);
  if (!ok) throw RunError("no network interface reaches rank 0 at '" + peer + "'");
  return text.data();
}

/// The interface: as asked for, loopback when all ranks are here, GLOO_SOCKET_IFNAME, else the one that
/// reaches rank 0 (gloo's own default, the host's name, resolves to loopback on many systems).
gloo::transport::tcp::attr choose_interface(const BackendConfig& config) {
  gloo::transport::tcp::attr attribute;
  const std::optional<std::string> variable = [] {
    const char* value = std::getenv("GLOO_SOCKET_IFNAME");  // NOLINT(concurrency-mt-unsafe)
    return value == nullptr ? std::optional<std::string>() : value;
  }();
  const bool one_host = all_on_one_host(config);
  if (!config.interface.empty()) {
    attribute.iface = config.interface;
  } else if (one_host) {
    attribute.hostname = "127.0.0.1";
  } else if (variable) {
    attribute.iface = *variable;
  } else {
    attribute.hostname = address_towards(config.master_addr);
  }
  return attribute;
}

std::string joined(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

std::string failed_key(int rank) { return "failed/" + std::to_string(rank); }

}  // namespace

GlooConnection::GlooConnection(const BackendConfig& config)
    : store_(config.store),
      timeout_(config.timeout),
      ranks_of_job_(static_cast<std::size_t>(config.world_size)) {
  // Gloo writes to sockets without MSG_NOSIGNAL: a peer that died would end this rank too, without a word.
  std::signal(SIGPIPE, SIG_IGN);
  std::iota(ranks_of_job_.begin(), ranks_of_job_.end(), 0);
  const auto attribute = choose_interface(config);
  const std::string where = attribute.iface.empty() ? "" : " over interface '" + attribute.iface + "'";
  try {
    device_ = gloo::transport::tcp::CreateDevice(attribute);
  } catch (const std::exception& error) {
    throw RunError("rank " + std::to_string(config.rank) + ": gloo cannot use the network" + where + ": " +
                   error.what());
  }
  connect(config.rank, "gloo/", where);
}

GlooConnection::GlooConnection(GlooConnection& whole, const std::string& name, const std::vector<int>& ranks)
    : device_(whole.device_), store_(whole.store_), timeout_(whole.timeout_) {
  const auto own = std::find(ranks.begin(), ranks.end(), whole.rank());
  if (own == ranks.end()) throw std::logic_error("a rank makes a group '" + name + "' that it is not in");
  for (const int rank : ranks) ranks_of_job_.push_back(whole.rank_of_job(rank));
  // Groups of equal name are told apart by their ranks, and equal ones by how many there were before.
  const std::string key = name + "/" + joined(ranks_of_job_);
  const int earlier = whole.groups_[key]++;
  connect(static_cast<int>(own - ranks.begin()), "gloo/" + key + "/" + std::to_string(earlier) + "/",
          " of group '" + name + "'");
}

void GlooConnection::connect(int rank, const std::string& prefix, const std::string& where) {
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, static_cast<int>(ranks_of_job_.size()));
  context->setTimeout(timeout_);
  context_ = context;
  GlooStore store(*store_, prefix);
  try {
    context->connectFullMesh(store, device_);
  } catch (const std::exception& error) {
    throw RunError("rank " + std::to_string(rank_of_job(rank)) + ": gloo cannot connect the ranks" + where +
                   ": " + error.what());
  }
}

void GlooConnection::abandon() {
  try {
    describe_failure("run", "abandoned");
  } catch (const std::exception&) {  // the store may be gone already; closing is what counts
  }
  context_->closeConnections();
}

/// Peers whose connection is closed and that did not report a failure of their own: those are the ones that
/// died (or that were silent until the timeout, after which gloo closes the connection). A closed connection
/// refuses a send at once.
std::string GlooConnection::lost_peers() {
  constexpr std::uint64_t kProbeSlot = 0x42ULL << 56U;
  std::vector<int> closed;
  std::vector<int> silent;
  char nothing = 0;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank()) continue;
    try {
      auto probe = context_->createUnboundBuffer(&nothing, 0);
      probe->send(peer, kProbeSlot);
    } catch (const gloo::Exception&) {
      closed.push_back(rank_of_job(peer));
    }
  }
  try {
    for (const int peer : closed)
      if (!store_->has(failed_key(peer))) silent.push_back(peer);
  } catch (const Error&) {  // the store went with rank 0
    silent = closed;
  }
  const std::vector<int>& named = silent.empty() ? closed : silent;
  return named.empty() ? "" : joined(named);
}

std::string GlooConnection::describe_failure(const std::string& what, const std::string& reason) {
  const std::scoped_lock lock(mutex_);
  const int own = rank_of_job(rank());
  if (!failure_.empty()) return failure_;
  const bool timed_out = reason.find("imed out") != std::string::npos;
  const std::string peers = lost_peers();
  failure_ = "rank " + std::to_string(own) + ": " + what + " failed: ";
  if (timed_out)
    failure_ += (peers.empty() ? "a peer" : peers) + " did not answer within " +
                std::to_string(timeout_.count() / 1000) + " s";
  else if (!peers.empty())
    failure_ += peers + " closed the connection: it died or gave up";
  else
    failure_ += reason;
  try {
    store_->set(failed_key(own), {'1'});
  } catch (const Error&) {  // nobody left to tell
    return failure_;
  }
  // Rank 0 serves the store, in which the others look up who failed by itself.
  constexpr std::chrono::milliseconds kLinger{300};
  if (own == 0) std::this_thread::sleep_for(kLinger);
  return failure_;
}

}  // namespace stepcast
