#pragma once

#include <gloo/common/error.h>
#include <gloo/context.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runner/backend/backend.hpp"
#include "runner/backend/local_address.hpp"
#include "runner/control/failure_reports.hpp"
#include "runner/control/host_identity.hpp"

namespace stepcast {

/// Adapter of the Store for gloo. Keys get a prefix, so that groups do not collide.
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

/// Full mesh of TCP connections between the ranks, with errors that name lost ranks.
class GlooConnection {
 public:
  /// Connects to every other rank through the store. \throws RunError
  explicit GlooConnection(const BackendConfig& config)
      : place_(std::make_shared<const BackendConfig>(config)),
        failures_(config.store),
        members_{"gloo", all_ranks(config.world_size), config.rank} {
    // Gloo writes to sockets without MSG_NOSIGNAL: a peer that died would end this rank too, without a word.
    std::signal(SIGPIPE, SIG_IGN);
    const LocalAddress place = choose_network(config);
    gloo::transport::tcp::attr attribute;
    attribute.iface = place.interface;
    attribute.hostname = place.address;
    const std::string where = attribute.iface.empty() ? "" : " over interface '" + attribute.iface + "'";
    try {
      device_ = gloo::transport::tcp::CreateDevice(attribute);
    } catch (const std::exception& error) {
      throw RunError("rank {}: gloo cannot use the network{}: {}", config.rank, where, error.what());
    }
    connect(where);
  }

  /// Connects `ranks` of `whole` with each other over separate connections on the device of `whole`, with its
  /// thread. Called by the members. \throws RunError
  GlooConnection(GlooConnection& whole, const std::string& name, const std::vector<int>& ranks)
      : device_(whole.device_),
        place_(whole.place_),
        failures_(place_->store),
        members_(whole.members_.subgroup(name, ranks)) {
    connect(" of group '" + name + "'");
  }

  [[nodiscard]] const std::shared_ptr<gloo::Context>& context() const { return context_; }
  [[nodiscard]] int rank() const { return context_->rank; }
  [[nodiscard]] int world_size() const { return context_->size; }
  /// Number in the whole job of rank `rank` of this connection.
  [[nodiscard]] int rank_of_job(int rank) const { return members_.ranks.at(rank); }

  /// Runs a call of gloo. \throws RunError that names this rank, the call, and the peers that are gone or
  /// silent, by their numbers in the whole job, with hosts if there are several
  template <class Call>
  auto guarded(const std::string& what, Call call) {
    try {
      return call();
    } catch (const gloo::Exception& error) {
      throw RunError(describe_failure(what, error.what()));
    }
  }

  /// Closes all connections, so that peers that wait for this rank fail at once instead of after their
  /// timeout.
  void abandon() {
    const std::scoped_lock lock(mutex_);
    if (failure_.empty()) failure_ = "rank " + std::to_string(members_.own_in_job()) + ": gave up";
    failures_.report(members_.own_in_job());
    context_->closeConnections();
  }

 private:
  void connect(const std::string& where) {
    auto context = std::make_shared<gloo::rendezvous::Context>(members_.own, members_.size());
    context->setTimeout(place_->timeout);
    context_ = context;
    GlooStore store(*place_->store, members_.name + "/");
    try {
      context->connectFullMesh(store, device_);
    } catch (const std::exception& error) {
      throw RunError("rank {}: gloo cannot connect the ranks{}: {}", members_.own_in_job(), where,
                     error.what());
    }
  }

  std::string describe_failure(const std::string& what, const std::string& reason) {
    const std::scoped_lock lock(mutex_);
    if (!failure_.empty()) return failure_;
    const std::string because = cause(reason.find("imed out") != std::string::npos);
    const int own = members_.own_in_job();
    failure_ = in_words({own}) + ": " + what + " failed: " + (because.empty() ? reason : because);
    // Rank 0 serves the store, in which the others look up failed ranks.
    constexpr std::chrono::milliseconds kLinger{300};
    if (own == 0) std::this_thread::sleep_for(kLinger);
    return failure_;
  }

  /// Ranks that caused the failure. A rank that fails closes its connections, so that all others fail at
  /// once, and reports it in the store. A rank without a report after a while is lost.
  [[nodiscard]] std::string cause(bool timed_out) {
    constexpr std::chrono::milliseconds kSoon{300}, kCascade{700};
    const std::string late =
        " did not answer within " + std::to_string(place_->timeout.count() / 1000) + " s";
    const std::string died = " closed the connection: it died or gave up";
    const std::vector<int> closed = timed_out ? std::vector<int>{} : closed_peers();
    context_->closeConnections();
    failures_.report(members_.own_in_job());
    const std::vector<int> dead = failures_.unreported(closed, kSoon);
    if (!dead.empty() && !failures_.store_gone()) return in_words(dead) + died;
    if (!timed_out && closed.empty()) return "";
    const std::vector<int> silent = failures_.unreported(members_.others(), kCascade);
    if (failures_.store_gone()) {  // and with it rank 0, which serves it
      if (timed_out) return in_words({0}) + late + cut_off({0});
      return in_words(closed.front() == 0 ? std::vector<int>{0} : closed) + died;
    }
    if (silent.empty()) return timed_out ? "a peer" + late : in_words(closed) + died;
    if (timed_out) return in_words(silent) + late + cut_off(silent);
    return in_words(closed) + " gave up, and " + in_words(silent) + " did not answer" + cut_off(silent);
  }

  /// Alternative cause if no rank on another host answers.
  [[nodiscard]] std::string cut_off(const std::vector<int>& silent) const {
    if (place_->hosts.empty()) return "";  // all ranks are on this host
    const HostIdentity& here = place_->hosts[members_.own_in_job()];
    bool all_elsewhere = false;
    for (const int peer : members_.others()) {
      if (place_->hosts[peer].same_host(here)) continue;
      all_elsewhere = true;
      if (!failures_.store_gone() && std::ranges::find(silent, peer) == silent.end()) return "";
    }
    return all_elsewhere ? "; or the network of host " + here.name + ", this one, is down" : "";
  }

  /// Peers whose connection is closed: they died, gave up, or were silent until the timeout, after which gloo
  /// closes all connections. A closed connection rejects a send at once. Numbers in the job.
  [[nodiscard]] std::vector<int> closed_peers() {
    constexpr std::uint64_t kProbeSlot = 0x44ULL << 56U;  // chosen algorithms have 0x41 to 0x43
    std::vector<int> closed;
    char nothing = 0;
    for (int peer = 0; peer < world_size(); ++peer) {
      try {
        if (peer != rank()) context_->createUnboundBuffer(&nothing, 0)->send(peer, kProbeSlot);
      } catch (const gloo::Exception&) {
        closed.push_back(rank_of_job(peer));
      }
    }
    return closed;
  }

  [[nodiscard]] std::string in_words(const std::vector<int>& ranks) const {
    return ranks_in_words(ranks, place_->hosts);
  }

  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::Context> context_;
  std::shared_ptr<const BackendConfig> place_;  ///< of the whole job
  FailureReports failures_;
  GroupMembers members_;
  std::mutex mutex_;
  std::string failure_;  ///< of the first call that failed
};

}  // namespace stepcast
