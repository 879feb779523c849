#include "topologies/devices.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <string>

namespace stepcast::devices_test {
namespace {

TEST_CASE("a driver's name of another GPU or of a part of one is unknown") {
  for (const char* name : {"NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H200 NVL", "NVIDIA GH200 144G HBM3e",
                           "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4090 Laptop GPU",
                           "NVIDIA L40S-48Q", "NVIDIA A10G"}) {
    INFO(name);
    CHECK(reported_device(name) == nullptr);
  }
}

TEST_CASE("names of drivers and /proc/cpuinfo select the device") {
  const std::map<std::string, std::string> devices{
      {"NVIDIA H100 80GB HBM3", "h100-sxm"},
      {"NVIDIA H200", "h200"},
      {"NVIDIA H100 NVL", "h100-nvl"},
      {"NVIDIA GH200 120GB", "gh200"},
      {"NVIDIA GH200 480GB", "gh200"},
      {"NVIDIA B300 SXM6 AC", "b300"},
      {"NVIDIA GeForce RTX 4090", "rtx-4090"},
      {"Tesla P100-PCIE-12GB", "p100-pcie-12gb"},
      {"AMD Instinct MI300X", "mi300x"},
      {"AMD Instinct MI300X VF", "mi300x"},
      {"Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", "xeon-gold-6148"},
      {"Intel(R) Xeon(R) Platinum 8480+", "xeon-platinum-8480"}};
  for (const auto& [name, device] : devices) {
    INFO(name);
    const DeviceModel* found = reported_device(name);
    REQUIRE(found != nullptr);
    CHECK(found->name == device);
  }
}

TEST_CASE("memory of AMD's GPUs is that of rocm-smi, and cards with a bridge are marked") {
  CHECK(device_model("mi300x").memory == Bytes(206141652992.0));
  CHECK(device_model("mi355x").memory == Bytes(309220868096.0));
  CHECK(device_model("h100-pcie").links.bridged);
  CHECK_FALSE(device_model("h100-sxm").links.bridged);
}

}  // namespace
}  // namespace stepcast::devices_test
