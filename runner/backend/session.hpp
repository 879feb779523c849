#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "runner/backend/backend.hpp"
#include "runner/control/control_plane.hpp"
#include "runner/launch/launch.hpp"

namespace stepcast {

/// One rank that has joined its job: the control plane, and the backend that its tensors travel by.
struct RankSession {
  RankContext ranks{};
  BackendConfig place{};  ///< with which the backend was connected
  std::unique_ptr<ControlPlane> control{};
  std::unique_ptr<Backend> backend{};
  std::string binding{};     ///< report of bind_rank
  std::string scheduling{};  ///< report of set_scheduling
};

/// Joins the job and connects the backend of that name. \param algorithms as in BackendConfig \param store
/// where the ranks have met already \throws TimeoutError, UsageError (unknown backend), RunError
inline RankSession join_job(const RankContext& ranks, const std::string& backend,
                            const std::string& interface, std::chrono::milliseconds timeout,
                            AlgorithmChoice algorithms = {}, std::shared_ptr<Store> store = nullptr) {
  const BackendFactory& factory = find_backend(backend);
  if (store == nullptr)
    store = ranks.world_size == 1 ? make_memory_store(timeout) : make_store(ranks, timeout);
  RankSession session;
  session.ranks = ranks;
  session.control = std::make_unique<ControlPlane>(store, ranks.rank, ranks.world_size, timeout);
  session.place = {ranks.rank,
                   ranks.world_size,
                   interface,
                   timeout,
                   store,
                   ranks.master_addr,
                   hosts_of_ranks(*session.control),
                   std::move(algorithms),
                   ranks.local_rank};
  session.backend = factory.make(session.place);
  return session;
}

}  // namespace stepcast
