#include "runner/rendezvous.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>

#include "runner/torch_engine.hpp"
#include "sim/core/units.hpp"

namespace stepcast {
namespace {

constexpr std::uint32_t kTextTag = 0xFFFF'FF00;  ///< send/recv tag that no strategy uses

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
      throw TimeoutError("rendezvous: nobody set '" + key + "'");
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

std::string joined_key(int rank) { return "joined/" + std::to_string(rank); }

std::string missing_ranks(Store& store, int world_size) {
  std::string list;
  for (int rank = 0; rank < world_size; ++rank)
    if (!store.has(joined_key(rank))) list += (list.empty() ? "" : ", ") + std::to_string(rank);
  return list;
}

Array whole(std::string& text) { return {text.data(), text.size(), DataType::kUInt8}; }

}  // namespace

std::shared_ptr<Store> make_memory_store(std::chrono::milliseconds timeout) {
  return std::make_shared<MemoryStore>(timeout);
}

std::shared_ptr<Store> make_store(const RankContext& ranks, std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + timeout;
  const bool in_folder = !ranks.store_folder.empty();
  std::shared_ptr<Store> store = in_folder ? make_file_store(ranks.store_folder, timeout)
                                           : torch_engine().make_tcp_store(ranks, timeout);
  store->set(joined_key(ranks.rank), {'1'});
  constexpr std::chrono::milliseconds kPause{5};
  for (std::string missing = missing_ranks(*store, ranks.world_size); !missing.empty();
       missing = missing_ranks(*store, ranks.world_size)) {
    if (Clock::now() > deadline)
      throw TimeoutError(
          "rank " + std::to_string(ranks.rank) + ": of " + std::to_string(ranks.world_size) +
          " ranks these did not join at " +
          (in_folder ? ranks.store_folder : ranks.master_addr + ":" + std::to_string(ranks.master_port)) +
          " within " + to_text(Seconds(std::chrono::duration<double>(timeout).count())) + ": " + missing);
    std::this_thread::sleep_for(kPause);
  }
  return store;
}

RankSession join_job(const RankContext& ranks, const std::string& backend, const std::string& interface,
                     std::chrono::milliseconds timeout) {
  const BackendFactory& factory = backends().find(backend);
  RankSession session;
  session.ranks = ranks;
  session.store = ranks.world_size == 1 ? make_memory_store(timeout) : make_store(ranks, timeout);
  session.place = {ranks.rank, ranks.world_size, interface, timeout, session.store, ranks.master_addr};
  session.backend = factory.make(session.place);
  return session;
}

std::vector<std::string> gather_text(Backend& backend, const std::string& text) {
  const int world_size = backend.world_size();
  auto size = static_cast<std::int64_t>(text.size());
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(world_size));
  backend.all_gather({&size, 1, DataType::kInt64}, {sizes.data(), sizes.size(), DataType::kInt64})->wait();
  std::string own = text;
  if (backend.rank() != 0) {
    if (!own.empty()) backend.send(whole(own), 0, kTextTag)->wait();
    backend.barrier();
    return {};
  }
  std::vector<std::string> texts(static_cast<std::size_t>(world_size));
  std::vector<WorkPtr> works;
  texts[0] = std::move(own);
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    texts[rank].resize(static_cast<std::size_t>(sizes[rank]));
    if (sizes[rank] > 0) works.push_back(backend.recv(whole(texts[rank]), static_cast<int>(rank), kTextTag));
  }
  for (const WorkPtr& work : works) work->wait();
  backend.barrier();
  return texts;
}

std::vector<std::string> all_gather_text(Backend& backend, const std::string& text) {
  const auto world = static_cast<std::size_t>(backend.world_size());
  const std::vector<double> sizes = all_gather_numbers(backend, {static_cast<double>(text.size())});
  const auto longest = static_cast<std::size_t>(*std::max_element(sizes.begin(), sizes.end()));
  std::string own = text;
  own.resize(longest);
  std::string all(longest * world, '\0');
  backend.all_gather(whole(own), whole(all))->wait();
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < world; ++rank)
    texts.push_back(all.substr(rank * longest, static_cast<std::size_t>(sizes[rank])));
  return texts;
}

std::vector<double> all_gather_numbers(Backend& backend, std::vector<double> mine) {
  std::vector<double> all(mine.size() * static_cast<std::size_t>(backend.world_size()));
  backend
      .all_gather({mine.data(), mine.size(), DataType::kFloat64},
                  {all.data(), all.size(), DataType::kFloat64})
      ->wait();
  return all;
}

double max_over_ranks(Backend& backend, double value) {
  const std::vector<double> values = all_gather_numbers(backend, {value});
  return *std::max_element(values.begin(), values.end());
}

}  // namespace stepcast
