#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <type_traits>

#include "runner/rendezvous.hpp"

namespace stepcast {
namespace {

std::string joined_key(int rank) { return "joined/" + std::to_string(rank); }

/// The first line of a c10 exception; the rest is a stack trace.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

/// Our Store on top of c10d's TCPStore: rank 0 serves, everybody is a client.
class TcpStore : public Store {
 public:
  TcpStore(const RankContext& ranks, std::chrono::milliseconds timeout)
      : store_(ranks.master_addr, options(ranks, timeout)) {}

  void set(const std::string& key, const std::vector<char>& value) override {
    guarded([&] {
      store_.set(key, {value.begin(), value.end()});
      return 0;
    });
  }
  std::vector<char> get(const std::string& key) override {
    const std::vector<uint8_t> value = guarded([&] { return store_.get(key); });
    return {value.begin(), value.end()};
  }
  bool has(const std::string& key) override {
    return guarded([&] { return store_.check({key}); });
  }

 private:
  static c10d::TCPStoreOptions options(const RankContext& ranks, std::chrono::milliseconds timeout) {
    c10d::TCPStoreOptions result;
    result.port = static_cast<std::uint16_t>(ranks.master_port);
    result.isServer = ranks.rank == 0;
    result.waitWorkers = false;
    result.timeout = timeout;
    return result;
  }

  template <class Call>
  static std::invoke_result_t<Call> guarded(Call call) {
    try {
      return call();
    } catch (const std::exception& error) {
      throw RunError("rendezvous with rank 0: " + first_line(error));
    }
  }

  c10d::TCPStore store_;
};

std::string missing_ranks(Store& store, int world_size) {
  std::string list;
  for (int rank = 0; rank < world_size; ++rank)
    if (!store.has(joined_key(rank))) list += (list.empty() ? "" : ", ") + std::to_string(rank);
  return list;
}

}  // namespace

std::shared_ptr<Store> make_store(const RankContext& ranks, std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + timeout;
  const std::string place = ranks.master_addr + ":" + std::to_string(ranks.master_port);
  const std::string limit = std::to_string(static_cast<double>(timeout.count()) / 1000.0);
  const std::string within = " within " + limit.substr(0, limit.find('.') + 2) + " s";
  std::shared_ptr<TcpStore> store;
  try {
    store = std::make_shared<TcpStore>(ranks, timeout);
  } catch (const std::exception& error) {
    if (ranks.rank == 0)
      throw RunError("rank 0 cannot serve the rendezvous at " + place + ": " + first_line(error));
    throw TimeoutError("rank " + std::to_string(ranks.rank) + ": rank 0 did not answer at " + place + within +
                       " (" + first_line(error) + ")");
  }
  store->set(joined_key(ranks.rank), {'1'});
  constexpr std::chrono::milliseconds kPause{5};
  for (std::string missing = missing_ranks(*store, ranks.world_size); !missing.empty();
       missing = missing_ranks(*store, ranks.world_size)) {
    if (Clock::now() > deadline)
      throw TimeoutError("rank " + std::to_string(ranks.rank) + ": of " + std::to_string(ranks.world_size) +
                         " ranks these did not join at " + place + within + ": " + missing);
    std::this_thread::sleep_for(kPause);
  }
  return store;
}

}  // namespace stepcast
