#include <exception>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <type_traits>

#include "core/error.hpp"
#include "core/units.hpp"
#include "runner/control/store.hpp"

namespace stepcast {
namespace {

/// The first line of a c10 exception; the rest is a stack trace.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

/// Store on top of c10d's TCPStore: rank 0 serves, every rank is a client.
class TcpStore : public Store {
 public:
  TcpStore(const RankContext& ranks, std::chrono::milliseconds timeout)
      : store_(ranks.master_addr, options(ranks, timeout)) {}

  void set(const std::string& key, const std::vector<char>& value) override {
    guarded([&] { store_.set(key, {value.begin(), value.end()}); });
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
      const std::string line = first_line(error);
      if (line.find("imeout") != std::string::npos) throw TimeoutError("rendezvous: " + line);
      throw RunError("rendezvous with rank 0: " + line);
    }
  }

  c10d::TCPStore store_;
};

/// \throws TimeoutError if rank 0 does not answer; RunError if rank 0 cannot serve it
std::shared_ptr<Store> make_tcp_store(const RankContext& ranks, std::chrono::milliseconds timeout) {
  try {
    return std::make_shared<TcpStore>(ranks, timeout);
  } catch (const std::exception& error) {
    const std::string place = ranks.master_addr + ":" + std::to_string(ranks.master_port);
    if (ranks.rank == 0)
      throw RunError("rank 0 cannot serve the rendezvous at " + place + ": " + first_line(error));
    throw TimeoutError("rank " + std::to_string(ranks.rank) + ": rank 0 did not answer at " + place +
                       " within " + to_text(Seconds(timeout)) + " (" + first_line(error) + ")");
  }
}

const Registration<StoreFactory> kTcp{stores(), "tcp", make_tcp_store};

}  // namespace
}  // namespace stepcast
