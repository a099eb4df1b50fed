// Classify an image with an exported model, and print the best classes.
//
//     c++ -std=c++17 classify.cpp $(smelt cc) -o classify
//     ./classify model.smelt image.bin 3
//
// The image is the bytes of the model's first input, float32.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <vector>

#include "smelt.hpp"

int main(int count, char **arguments)
{
    if (count != 4) {
        std::fprintf(stderr, "usage: classify model.smelt image.bin classes\n");
        return 1;
    }
    try {
        smelt::Model model(arguments[1]);
        smelt::Session session(model);
        const smelt_info input = model.inputs().at(0);
        std::vector<std::int64_t> sizes;
        std::size_t elements = 1;
        for (int dim = 0; dim < input.rank; dim++) {
            sizes.push_back(input.dims[dim].low);
            elements *= static_cast<std::size_t>(sizes.back());
        }
        std::vector<float> image(elements);
        std::ifstream file(arguments[2], std::ios::binary);
        if (!file.read(reinterpret_cast<char *>(image.data()), static_cast<std::streamsize>(elements * sizeof(float)))) {
            std::fprintf(stderr, "%s: too short\n", arguments[2]);
            return 1;
        }
        session.run({smelt::tensor(image, sizes)});
        const smelt::Output output = session.output(0);
        const smelt::Span<float> scores = output.values<float>();
        std::vector<std::size_t> order(scores.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
        order.resize(std::min(order.size(), static_cast<std::size_t>(std::atoi(arguments[3]))));
        for (std::size_t best : order) {
            std::printf("%zu %.5f\n", best, scores[best]);
        }
    } catch (const smelt::Error &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
