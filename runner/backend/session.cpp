#include "runner/backend/session.hpp"

#include <utility>

namespace stepcast {

RankSession join_job(const RankContext& ranks, const std::string& backend, const std::string& interface,
                     std::chrono::milliseconds timeout, AlgorithmChoice algorithms) {
  static_cast<void>(backends().find(backend));
  return join_job(ranks, backend, interface, timeout,
                  ranks.world_size == 1 ? make_memory_store(timeout) : make_store(ranks, timeout),
                  std::move(algorithms));
}

RankSession join_job(const RankContext& ranks, const std::string& backend, const std::string& interface,
                     std::chrono::milliseconds timeout, const std::shared_ptr<Store>& store,
                     AlgorithmChoice algorithms) {
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
                   std::move(algorithms)};
  session.backend = backends().find(backend).make(session.place);
  return session;
}

}  // namespace stepcast
