#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/registry.hpp"
#include "runner/launch/launch.hpp"

namespace stepcast {

/// Rendezvous of the ranks of one job: a key-value store that all can reach.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  /// Blocks until the key exists. \throws TimeoutError
  virtual std::vector<char> get(const std::string& key) = 0;
  /// True if the key exists now. \throws RunError if the store is gone.
  virtual bool has(const std::string& key) = 0;
};

/// 0, 1, ... of a job.
std::vector<int> all_ranks(int world_size);
/// Ranks whose key does not exist after `limit`; returns as soon as all exist. \throws RunError if the store
/// is gone.
std::vector<int> missing_ranks(Store& store, std::vector<int> ranks,
                               const std::function<std::string(int rank)>& key,
                               std::chrono::milliseconds limit = {});

/// Connects a rank to the store of its job.
using StoreFactory =
    std::function<std::shared_ptr<Store>(const RankContext& ranks, std::chrono::milliseconds timeout)>;

/// Stores beside files in a folder: `tcp` after libstepcast-torch.so is loaded.
Registry<StoreFactory>& stores();

/// The key-value store of the job: in its folder if it has one, otherwise c10d's TCPStore, which rank 0
/// serves at master_addr:master_port. Returns when every rank has joined. \throws TimeoutError that names the
/// ranks that did not join.
std::shared_ptr<Store> make_store(const RankContext& ranks, std::chrono::milliseconds timeout);

/// A store for ranks that are threads of one process.
std::shared_ptr<Store> make_memory_store(std::chrono::milliseconds timeout);

/// A store of files, one per key, in a folder that all ranks share.
std::shared_ptr<Store> make_file_store(const std::string& folder, std::chrono::milliseconds timeout);

}  // namespace stepcast
