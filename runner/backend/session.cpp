#include "runner/backend/session.hpp"

#include <utility>

namespace stepcast {

RankSession join_job(const RankContext& ranks, const std::string& backend, const std::string& interface,
                     std::chrono::milliseconds timeout, AlgorithmChoice algorithms,
                     std::shared_ptr<Store> store) {
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
