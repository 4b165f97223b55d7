// Runs a packaged model in a process without Python. export_aoti.py writes the package, compiles this
// program and calls it:
//
//     run_aoti MODEL.pt2 INPUTS.pt OUTPUTS.pt LIBRARY...
//
// INPUTS.pt is a list of tensors from torch.save; the model gets one after the other. The libraries
// are the package's own: the operators' schemas and their CPU kernels.
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

std::vector<char> read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string& path, const std::vector<char>& bytes) {
  std::ofstream file(path, std::ios::binary);
  if (!file.write(bytes.data(), bytes.size())) throw std::runtime_error("cannot write " + path);
}

void run(const std::vector<std::string>& arguments) {
  if (arguments.size() < 3) {
    throw std::runtime_error("usage: run_aoti MODEL.pt2 INPUTS.pt OUTPUTS.pt LIBRARY...");
  }
  // They register the operators when they are loaded, which must be before the model is.
  for (size_t i = 3; i < arguments.size(); ++i) {
    if (!dlopen(arguments[i].c_str(), RTLD_NOW)) throw std::runtime_error(dlerror());
  }
  torch::inductor::AOTIModelPackageLoader model(arguments[0]);
  const c10::IValue inputs = torch::jit::pickle_load(read(arguments[1]));
  std::vector<c10::IValue> outputs;
  for (const c10::IValue& x : inputs.toListRef()) outputs.push_back(model.run({x.toTensor()}).at(0));
  write(arguments[2], torch::jit::pickle_save(c10::ivalue::Tuple::create(outputs)));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run({argv + 1, argv + argc});
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << '\n';
    return 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
