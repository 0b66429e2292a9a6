/*
 * Where the settings come from. Prints the active ones, or what the first request failed with.
 *
 *   settings SHIM [SETTINGS]        SETTINGS: given before the first request
 */
#include "torch.hpp"

int main(int argc, char **argv) {
  const Driver driver;
  driver.use(0);
  Pluggable torch(argv[1]);
  if (argc > 2 && cachalot_torch_configure(argv[2]) != CACHALOT_OK) {
    std::printf("refused: %s\n", cachalot_last_error());
  }
  torch.init(1);
  bool works = false;
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      works = torch.allocate(1000, 0, nullptr) != nullptr;
      break;
    } catch (const std::exception &error) {
      std::printf("failed: %s\n", error.what());
      void *block = &works;
      CHECK(cachalot_torch_allocate(1000, 0, nullptr, &block) == CACHALOT_ERROR_INVALID_CONFIG && block == &works);
    }
  }
  if (!works) {
    /* What fails after settings were chosen anew is told anew. */
    NEEDED(cachalot_torch_configure(nullptr));
    torch.init(1);
    /* Right settings, given late, still make an allocator. */
    NEEDED(cachalot_torch_configure("max_split_size_mb:40"));
    CHECK(torch.allocate(1000, 0, nullptr) != nullptr);
  }
  char config[512];
  cachalot_allocator *handle = nullptr;
  NEEDED(cachalot_torch_allocator(&handle));
  NEEDED(cachalot_get_config(handle, 0, config, sizeof config, nullptr));
  std::printf("active: %s\n", config);
  /* From here on they are changed as cachalot_configure does. */
  NEEDED(cachalot_torch_configure("per_process_memory_fraction:0.5"));
  NEEDED(cachalot_get_config(handle, 0, config, sizeof config, nullptr));
  CHECK(std::strstr(config, "per_process_memory_fraction:0.5") != nullptr);
  CHECK(cachalot_torch_configure("per_process_memory_fraction:7") == CACHALOT_ERROR_INVALID_CONFIG);
  CHECK(cachalot_torch_configure(nullptr) == CACHALOT_ERROR_NULL);
  return failures != 0;
}
