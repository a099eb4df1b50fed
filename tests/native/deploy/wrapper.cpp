// The C++ wrapper: runs two models of tests/native/deploy/models.py, and checks what it gets.
#include <smelt.hpp>

#include <cmath>
#include <iostream>

static void expect(bool holds, const char *what)
{
    if (!holds) {
        std::cerr << "wrong: " << what << "\n";
        std::exit(1);
    }
}

int main(int argc, char **argv)
{
    expect(argc == 4, "arguments");
    smelt::Model model(argv[1]);
    expect(model.name() == "affine" && model.inputs().at(0).rank == 2, "model");
    expect(model.manifest() == "{\"name\":\"affine\"}", "manifest");
    smelt::Session session(model, 2);
    const std::vector<float> x(12, 1.0f);
    session.run({smelt::tensor(x, {3, 4})});
    const smelt::Output y = session.output();
    expect(y.sizes == std::vector<std::int64_t>{3, 4} && y.count() == 12, "sizes");
    expect(y.values<float>()[5] == 22.0f, "values");
    try {
        session.run({smelt::tensor(x, {12, 1})});
        expect(false, "an exception");
    }
    catch (const smelt::Error &error) {
        expect(error.status() == SMELT_ERROR_SIZE && std::string(error.what()).find("input x") == 0, "its message");
    }
    try {
        y.values<double>();
        expect(false, "an exception");
    }
    catch (const smelt::Error &error) {
        expect(error.status() == SMELT_ERROR_ARGUMENT, "its status");
    }
    smelt::Session training{smelt::Model(argv[2])}; // the session keeps the model
    training.set_state<float>("w", {8, 8, 8, 8});
    training.run({smelt::tensor(std::vector<float>(4), {4})});
    expect(training.state<float>("w") == std::vector<float>(4, 4.0f), "state");
    training.save(argv[3]);
    training.reset();
    expect(training.state<float>("odd") == std::vector<float>{2, 4}, "reset");
    training.load(argv[3]);
    expect(training.state<float>("w") == std::vector<float>(4, 4.0f), "loaded state");
    smelt::Session moved = std::move(training);
    expect(moved.state<float>("odd").size() == 2, "move");
    std::cout << "all right\n";
    return 0;
}
