#pragma once

#include <chrono>
#include <memory>
#include <string>

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
RankSession join_job(const RankContext& ranks, const std::string& backend, const std::string& interface,
                     std::chrono::milliseconds timeout, AlgorithmChoice algorithms = {},
                     std::shared_ptr<Store> store = nullptr);

}  // namespace stepcast
