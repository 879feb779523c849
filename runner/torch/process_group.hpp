#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "runner/backend/local_address.hpp"

namespace stepcast {

/// Adapter of stepcast's store for c10d, as far as a process group uses it to connect. Keys get a prefix, so
/// that they do not collide with those of a Backend.
class ProcessGroupStore : public c10d::Store {
 public:
  ProcessGroupStore(std::shared_ptr<stepcast::Store> store, std::chrono::milliseconds timeout)
      : c10d::Store(timeout), store_(std::move(store)) {}

  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    store_->set(prefixed(key), {value.begin(), value.end()});
  }
  std::vector<std::uint8_t> get(const std::string& key) override {
    const std::vector<char> value = store_->get(prefixed(key));
    return {value.begin(), value.end()};
  }
  bool check(const std::vector<std::string>& keys) override {
    return std::ranges::all_of(keys, [&](const std::string& key) { return store_->has(prefixed(key)); });
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) static_cast<void>(get(key));
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& /*timeout*/) override {
    wait(keys);  // the store has its own timeout
  }
  std::int64_t add(const std::string& key, std::int64_t /*value*/) override { refuse("add", key); }
  bool deleteKey(const std::string& key) override { refuse("deleteKey", key); }
  /// Later versions take copies of a store; all are ends of the same.
  virtual c10::intrusive_ptr<c10d::Store> clone() {
    return c10::make_intrusive<ProcessGroupStore>(store_, getTimeout());
  }
  std::int64_t getNumKeys() override { refuse("getNumKeys", ""); }

 private:
  static std::string prefixed(const std::string& key) { return "c10d/" + key; }
  [[noreturn]] static void refuse(const std::string& call, const std::string& key) {
    throw std::logic_error("c10d calls " + call + "('" + key + "') of a store that only connects ranks");
  }

  std::shared_ptr<stepcast::Store> store_;
};

/// From 2.0 on a ProcessGroup contains backends by device and is none itself.
template <class Gloo, class Group = c10d::ProcessGroup>
c10::intrusive_ptr<Group> process_group_of(c10::intrusive_ptr<Gloo> gloo) {
  if constexpr (std::is_base_of_v<Group, Gloo>) {
    return gloo;
  } else {
    constexpr auto kGlooType = Group::BackendType::GLOO;
    auto group = c10::make_intrusive<Group>(gloo->getRank(), gloo->getSize());
    group->setBackend(c10::DeviceType::CPU, kGlooType, gloo);
    if constexpr (requires { group->setDefaultBackend(kGlooType); }) group->setDefaultBackend(kGlooType);
    return group;
  }
}

/// PyTorch's ProcessGroupGloo over all ranks of the job, with its own connections over the same interface as
/// a Backend and c10d's default of two communication threads. Every rank calls it, once per store. \throws
/// RunError if the ranks cannot be connected
inline c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(const BackendConfig& place) {
  using Gloo = c10d::ProcessGroupGloo;
  const LocalAddress network = choose_network(place);
  try {
    auto options = Gloo::Options::create(place.timeout);
    options->devices.push_back(network.interface.empty() ? Gloo::createDeviceForHostname(network.address)
                                                         : Gloo::createDeviceForInterface(network.interface));
    auto store = c10::make_intrusive<ProcessGroupStore>(place.store, place.timeout);
    return process_group_of(
        c10::make_intrusive<Gloo>(std::move(store), place.rank, place.world_size, std::move(options)));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw RunError("rank {}: ProcessGroupGloo cannot connect the ranks: {}", place.rank, error.what());
  }
}

}  // namespace stepcast
