#include "runner/control/store.hpp"

#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "core/ranges.hpp"
#include "core/table.hpp"
#include "core/units.hpp"
#include "runner/launch/torch_library.hpp"

namespace stepcast {
namespace {

using Clock = std::chrono::steady_clock;

class MemoryStore : public Store {
 public:
  explicit MemoryStore(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  void set(const std::string& key, const std::vector<char>& value) override {
    const std::scoped_lock lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::vector<char> get(const std::string& key) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout_, [&] { return values_.count(key) != 0; }))
      throw TimeoutError("rendezvous: no rank set '" + key + "'");
    return values_[key];
  }
  bool has(const std::string& key) override {
    const std::scoped_lock lock(mutex_);
    return values_.count(key) != 0;
  }

 private:
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::vector<char>> values_;
};

/// Values are written to a temporary file and renamed, so that an existing key is complete.
class FolderStore : public Store {
 public:
  FolderStore(std::filesystem::path folder, std::chrono::milliseconds timeout)
      : folder_(std::move(folder)), timeout_(timeout) {}

  void set(const std::string& key, const std::vector<char>& value) override {
    const std::string unfinished = file(key).string() + ".part" + std::to_string(::getpid());
    std::ofstream out(unfinished, std::ios::binary);
    out.write(value.data(), static_cast<std::streamsize>(value.size()));
    out.close();
    std::error_code problem;
    if (out) std::filesystem::rename(unfinished, file(key), problem);
    if (!out || problem)
      throw RunError("rendezvous: cannot write '" + key + "' in " + folder_.string() +
                     (problem ? ": " + problem.message() : ""));
  }
  std::vector<char> get(const std::string& key) override {
    constexpr std::chrono::microseconds kPause{500};
    for (const auto deadline = Clock::now() + timeout_; !has(key); std::this_thread::sleep_for(kPause))
      if (Clock::now() > deadline) throw TimeoutError("rendezvous: no rank set '" + key + "'");
    std::ifstream in(file(key), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  bool has(const std::string& key) override { return std::filesystem::exists(file(key)); }

 private:
  [[nodiscard]] std::filesystem::path file(std::string key) const {
    std::ranges::replace(key, '/', '_');
    return folder_ / key;
  }

  std::filesystem::path folder_;
  std::chrono::milliseconds timeout_;
};

std::string joined_key(int rank) { return "joined/" + std::to_string(rank); }

}  // namespace

std::vector<int> all_ranks(int world_size) { return whole_numbers(0, world_size); }

std::vector<int> missing_ranks(Store& store, std::vector<int> ranks,
                               const std::function<std::string(int rank)>& key,
                               std::chrono::milliseconds limit) {
  constexpr std::chrono::milliseconds kPause{2};
  for (const auto deadline = Clock::now() + limit;; std::this_thread::sleep_for(kPause)) {
    std::erase_if(ranks, [&](int rank) { return store.has(key(rank)); });
    if (ranks.empty() || Clock::now() >= deadline) return ranks;
  }
}

Registry<StoreFactory>& stores() {
  static Registry<StoreFactory> registry("store");
  return registry;
}

std::shared_ptr<Store> make_memory_store(std::chrono::milliseconds timeout) {
  return std::make_shared<MemoryStore>(timeout);
}

std::shared_ptr<Store> make_file_store(const std::string& folder, std::chrono::milliseconds timeout) {
  return std::make_shared<FolderStore>(folder, timeout);
}

std::shared_ptr<Store> make_store(const RankContext& ranks, std::chrono::milliseconds timeout) {
  const bool in_folder = !ranks.store_folder.empty();
  if (!in_folder && !stores().has("tcp")) load_torch_library();
  const std::shared_ptr<Store> store =
      in_folder ? make_file_store(ranks.store_folder, timeout) : stores().find("tcp")(ranks, timeout);
  store->set(joined_key(ranks.rank), {'1'});
  if (const auto missing = missing_ranks(*store, all_ranks(ranks.world_size), joined_key, timeout);
      !missing.empty())
    throw TimeoutError(
        "rank {}: of {} ranks these did not join at {} within {}: {}", ranks.rank, ranks.world_size,
        in_folder ? ranks.store_folder : ranks.master_addr + ":" + std::to_string(ranks.master_port),
        to_text(Seconds(timeout)), joined(missing));
  return store;
}

}  // namespace stepcast
