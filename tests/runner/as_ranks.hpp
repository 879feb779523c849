#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "runner/backend/session.hpp"
#include "runner/execute/memory_account.hpp"

namespace stepcast {

/// How ranks that are threads talk.
struct RankThreads {
  std::string backend = "gloo";
  std::chrono::milliseconds timeout{60'000};
  AlgorithmChoice algorithms{};
  bool ends_together = true;  ///< with a barrier, which a rank that is lost does not reach
};

/// Runs `body` as `world_size` ranks, each a thread with a backend of its own, and throws what the first of
/// them threw.
inline void as_sessions(int world_size, const std::function<void(RankSession&)>& body,
                        const RankThreads& how = {}) {
  const auto store = make_memory_store(how.timeout);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(world_size));
  // Never destroyed: a library may keep a tensor beyond the end of its thread.
  auto& accounts = *new std::vector<MemoryAccount>(errors.size());  // NOLINT
  std::vector<std::thread> threads;
  threads.reserve(errors.size());
  for (int rank = 0; rank < world_size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const AccountScope own(accounts[static_cast<std::size_t>(rank)]);
        RankContext ranks;
        ranks.rank = rank;
        ranks.local_rank = rank;
        ranks.world_size = world_size;
        RankSession session = join_job(ranks, how.backend, "", how.timeout, how.algorithms, store);
        body(session);
        if (how.ends_together) session.backend->barrier();
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

inline void as_ranks(int world_size, const std::function<void(Backend&)>& body, const RankThreads& how = {}) {
  as_sessions(
      world_size, [&body](RankSession& session) { body(*session.backend); }, how);
}

/// Throws instead of REQUIRE: Catch2 v2 assertions are not safe in threads.
inline void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

}  // namespace stepcast
