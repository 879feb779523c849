#include "runner/backends/gloo_connection.hpp"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <csignal>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <utility>

#include "runner/network_place.hpp"

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
  const NetworkPlace place = choose_network(config);
  gloo::transport::tcp::attr attribute;
  attribute.iface = place.interface;
  attribute.hostname = place.address;
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
