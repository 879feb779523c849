#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "runner/rendezvous.hpp"

namespace stepcast {

/// Runs `body` as `world_size` ranks, each a thread with its own backend, and throws what the first of them
/// threw. The place is what the backend was made with, for what connects the ranks once more.
inline void as_placed_ranks(int world_size, const std::function<void(Backend&, const BackendConfig&)>& body) {
  constexpr std::chrono::seconds kTimeout{60};
  const auto store = make_memory_store(kTimeout);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  threads.reserve(errors.size());
  for (int rank = 0; rank < world_size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const BackendConfig place{rank, world_size, "", kTimeout, store, "127.0.0.1"};
        const auto backend = backends().find("gloo").make(place);
        body(*backend, place);
        backend->barrier();
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

inline void as_ranks(int world_size, const std::function<void(Backend&)>& body) {
  as_placed_ranks(world_size, [&body](Backend& backend, const BackendConfig&) { body(backend); });
}

/// Throws instead of REQUIRE: Catch2 v2 assertions are not safe in threads.
inline void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

}  // namespace stepcast
