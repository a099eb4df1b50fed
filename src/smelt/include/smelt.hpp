// smelt.hpp: smelt.h for C++17, in one header: models and sessions that free themselves, errors as exceptions.
//
//     smelt::Model model("model.smelt");
//     smelt::Session session(model);
//     std::vector<float> pixels(1 * 3 * 224 * 224);
//     session.run({smelt::tensor(pixels, {1, 3, 224, 224})});
//     smelt::Output scores = session.output(0);
//     for (float score : scores.values<float>()) …
//
// Link with -lsmelt -lm -lpthread -ldl; `smelt cc` prints the flags.
#ifndef SMELT_HPP
#define SMELT_HPP

#include "smelt.h"

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace smelt {

// What went wrong: status() says which kind of error, what() the rest.
class Error : public std::runtime_error {
public:
    explicit Error(const smelt_error &error) : std::runtime_error(error.message), status_(error.status) {}
    Error(smelt_status status, const std::string &message) : std::runtime_error(message), status_(status) {}
    smelt_status status() const noexcept { return status_; }

private:
    smelt_status status_;
};

namespace detail {
template <typename Call> void check(Call &&call)
{
    smelt_error error{};
    if (call(&error) != SMELT_OK) {
        throw Error(error);
    }
}
} // namespace detail

// The dtype of a type of C++.
template <typename T> struct dtype_of;
template <> struct dtype_of<bool> { static constexpr smelt_dtype value = SMELT_BOOL; };
template <> struct dtype_of<std::uint8_t> { static constexpr smelt_dtype value = SMELT_UINT8; };
template <> struct dtype_of<std::int8_t> { static constexpr smelt_dtype value = SMELT_INT8; };
template <> struct dtype_of<std::uint16_t> { static constexpr smelt_dtype value = SMELT_UINT16; };
template <> struct dtype_of<std::int16_t> { static constexpr smelt_dtype value = SMELT_INT16; };
template <> struct dtype_of<std::uint32_t> { static constexpr smelt_dtype value = SMELT_UINT32; };
template <> struct dtype_of<std::int32_t> { static constexpr smelt_dtype value = SMELT_INT32; };
template <> struct dtype_of<std::uint64_t> { static constexpr smelt_dtype value = SMELT_UINT64; };
template <> struct dtype_of<std::int64_t> { static constexpr smelt_dtype value = SMELT_INT64; };
template <> struct dtype_of<float> { static constexpr smelt_dtype value = SMELT_FLOAT32; };
template <> struct dtype_of<double> { static constexpr smelt_dtype value = SMELT_FLOAT64; };

// An input: memory of the caller's with a shape. It must stay until the call has returned.
struct Input {
    smelt_dtype dtype = SMELT_NONE; // as it is: an input that is left out
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides; // in elements; none: contiguous
    void *data = nullptr;
};

// Contiguous elements. `data` is only written where the model writes its inputs.
template <typename T> Input tensor(const T *data, std::vector<std::int64_t> sizes)
{
    return {dtype_of<T>::value, std::move(sizes), {}, const_cast<T *>(data)};
}

template <typename T> Input tensor(const std::vector<T> &data, std::vector<std::int64_t> sizes)
{
    std::size_t count = 1;
    for (std::int64_t size : sizes) {
        count *= static_cast<std::size_t>(size);
    }
    if (count != data.size()) {
        throw Error(SMELT_ERROR_ARGUMENT, "an input has another number of elements than its sizes say");
    }
    return tensor(data.data(), std::move(sizes));
}

// A number, or one of an input's choices by its place.
template <typename T> Input scalar(const T &value) { return {dtype_of<T>::value, {}, {}, const_cast<T *>(&value)}; }

inline Input none() { return {}; }

// Elements one after the other.
template <typename T> class Span {
public:
    Span(T *data, std::size_t size) : data_(data), size_(size) {}
    T *begin() const noexcept { return data_; }
    T *end() const noexcept { return data_ + size_; }
    T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    T &operator[](std::size_t place) const noexcept { return data_[place]; }

private:
    T *data_;
    std::size_t size_;
};

// An output or a state register, in memory of the session's: an output is there until the session's next call.
struct Output {
    smelt_dtype dtype = SMELT_NONE; // as it is: the model returned None
    std::vector<std::int64_t> sizes;
    void *data = nullptr;

    std::size_t count() const
    {
        std::size_t found = 1;
        for (std::int64_t size : sizes) {
            found *= static_cast<std::size_t>(size);
        }
        return found;
    }

    template <typename T> Span<T> values() const
    {
        if (dtype != dtype_of<std::remove_const_t<T>>::value) {
            throw Error(SMELT_ERROR_ARGUMENT, std::string("this is a tensor of ") + smelt_dtype_name(dtype));
        }
        return Span<T>(static_cast<T *>(data), count());
    }
};

// An open file. Copies share it; any number of threads may use it.
class Model {
public:
    explicit Model(const std::string &path, unsigned flags = 0, smelt_device device = SMELT_DEVICE_BEST, int number = 0)
    {
        open(path, options(flags, device, number));
    }

    // With options of your own, such as public keys: `options.size` is set here.
    Model(const std::string &path, smelt_open_options options)
    {
        options.size = sizeof options;
        open(path, options);
    }

    // A file's bytes, at an address that is a multiple of 64; they must stay as long as the model.
    Model(const void *data, std::size_t size, unsigned flags = 0, smelt_device device = SMELT_DEVICE_BEST, int number = 0)
    {
        const smelt_open_options given = options(flags, device, number);
        smelt_model *made = nullptr;
        detail::check([&](smelt_error *error) { return smelt_model_from_memory(data, size, &given, &made, error); });
        model_.reset(made, smelt_model_close);
    }

    std::string name() const { return smelt_model_name(get()); }
    std::string target() const { return smelt_model_target(get()); }

    std::string_view manifest() const
    {
        std::size_t size = 0;
        const char *text = smelt_model_manifest(get(), &size);
        return {text, size};
    }

    std::vector<smelt_info> inputs() const { return infos(smelt_model_input_count(get()), smelt_model_input); }
    std::vector<smelt_info> outputs() const { return infos(smelt_model_output_count(get()), smelt_model_output); }
    std::vector<smelt_info> states() const { return infos(smelt_model_state_count(get()), smelt_model_state); }

    // The names of the entry points; of a file with one function, its name.
    std::vector<std::string> entries() const
    {
        std::vector<std::string> names;
        for (std::size_t i = 0; i < smelt_model_entry_count(get()); i++) {
            names.emplace_back(smelt_model_entry(get(), i));
        }
        return names;
    }

    std::int64_t choice(std::size_t input, const std::string &text) const
    {
        const std::int64_t found = smelt_model_choice(get(), input, text.c_str());
        if (found < 0) {
            throw Error(SMELT_ERROR_ARGUMENT, "the input has no choice " + text);
        }
        return found;
    }

    smelt_model *get() const noexcept { return model_.get(); }

private:
    static smelt_open_options options(unsigned flags, smelt_device device, int number)
    {
        smelt_open_options options{};
        options.size = sizeof options;
        options.flags = flags;
        options.device = device;
        options.device_number = number;
        return options;
    }

    void open(const std::string &path, const smelt_open_options &options)
    {
        smelt_model *made = nullptr;
        detail::check([&](smelt_error *error) { return smelt_model_open(path.c_str(), &options, &made, error); });
        model_.reset(made, smelt_model_close);
    }

    template <typename Ask> std::vector<smelt_info> infos(std::size_t count, Ask ask) const
    {
        std::vector<smelt_info> found;
        for (std::size_t i = 0; i < count; i++) {
            found.push_back(*ask(get(), i));
        }
        return found;
    }

    std::shared_ptr<smelt_model> model_;
};

// What runs a model: one call at a time, with its own state. It keeps the model open.
class Session {
public:
    explicit Session(const Model &model, int threads = 0, std::int64_t most_states = 0)
        : Session(model, smelt_session_options{sizeof(smelt_session_options), threads, most_states, nullptr, nullptr})
    {
    }

    Session(const Model &model, const smelt_session_options &options)
    {
        smelt_session *made = nullptr;
        detail::check([&](smelt_error *error) { return smelt_session_new(model.get(), &options, &made, error); });
        session_.reset(made);
    }

    // The entry point that `run` runs from now on, and that `output` is of.
    void choose(const std::string &entry)
    {
        const std::ptrdiff_t number = smelt_model_find_entry(smelt_session_model(get()), entry.c_str());
        if (number < 0) {
            throw Error(SMELT_ERROR_ARGUMENT, "there is no entry point " + entry);
        }
        detail::check([&](smelt_error *error) { return smelt_session_choose(get(), static_cast<std::size_t>(number), error); });
    }

    void run(const std::vector<Input> &inputs)
    {
        std::vector<smelt_tensor> given;
        given.reserve(inputs.size());
        for (const Input &input : inputs) {
            given.push_back({input.dtype, static_cast<int>(input.sizes.size()), input.sizes.data(),
                             input.strides.empty() ? nullptr : input.strides.data(), input.data});
        }
        detail::check([&](smelt_error *error) { return smelt_run(get(), given.data(), given.size(), error); });
    }

    Output output(std::size_t number = 0) const
    {
        smelt_tensor found{};
        detail::check([&](smelt_error *error) { return smelt_output(get(), number, &found, error); });
        return shown(found);
    }

    // From now on this output is written to memory of the caller's.
    void bind_output(std::size_t number, void *data, std::size_t bytes)
    {
        detail::check([&](smelt_error *error) { return smelt_bind_output(get(), number, data, bytes, error); });
    }

    // The elements of a state register, contiguous.
    template <typename T> std::vector<T> state(const std::string &name) const
    {
        const std::size_t number = state_number(name);
        smelt_tensor found{};
        detail::check([&](smelt_error *error) { return smelt_state(get(), number, &found, error); });
        if (found.dtype != dtype_of<T>::value) {
            throw Error(SMELT_ERROR_ARGUMENT, "state " + name + " is of " + smelt_dtype_name(found.dtype));
        }
        std::vector<T> values(shown(found).count());
        detail::check([&](smelt_error *error) {
            return smelt_state_read(get(), number, values.data(), values.size() * sizeof(T), error);
        });
        return values;
    }

    template <typename T> void set_state(const std::string &name, const std::vector<T> &values)
    {
        const std::size_t number = state_number(name);
        detail::check([&](smelt_error *error) {
            return smelt_state_write(get(), number, values.data(), values.size() * sizeof(T), error);
        });
    }

    void save(const std::string &path) const
    {
        detail::check([&](smelt_error *error) { return smelt_session_save(get(), path.c_str(), error); });
    }

    void load(const std::string &path)
    {
        detail::check([&](smelt_error *error) { return smelt_session_load(get(), path.c_str(), error); });
    }

    void reset()
    {
        detail::check([&](smelt_error *error) { return smelt_session_reset(get(), error); });
    }

    smelt_session *get() const noexcept { return session_.get(); }

private:
    struct Free {
        void operator()(smelt_session *session) const noexcept { smelt_session_free(session); }
    };

    static Output shown(const smelt_tensor &tensor)
    {
        return {tensor.dtype, {tensor.sizes, tensor.sizes + tensor.rank}, tensor.data};
    }

    std::size_t state_number(const std::string &name) const
    {
        const std::ptrdiff_t found = smelt_model_find_state(smelt_session_model(get()), name.c_str());
        if (found < 0) {
            throw Error(SMELT_ERROR_ARGUMENT, "the model has no state " + name);
        }
        return static_cast<std::size_t>(found);
    }

    std::unique_ptr<smelt_session, Free> session_;
};

} // namespace smelt

#endif
