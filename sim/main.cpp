#include "sim/cli/command.hpp"

int main(int argc, char** argv) {
  return stepcast::run_program(
      "stepcast",
      "stepcast forecasts how long a distributed training step takes, and checks it against real runs.", argc,
      argv);
}
