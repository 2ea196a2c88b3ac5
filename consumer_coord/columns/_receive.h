/* Receive the rest of a large frame without the GIL.  _kernel.c includes this file.
 *
 * The event loop takes the GIL again after each read; while another thread computes, each time takes up to 5 ms.  A response of
 * 8 MB needs twenty reads, so a thread of its own receives it, and takes the GIL once.
 */
#if defined(__linux__)
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

/* receive(fd, buffer, wake_from, patience_ms) -> the number of bytes received */
static PyObject *module_receive(PyObject *module, PyObject *args)
{
    int fd, patience_ms;
    Py_buffer buffer;
    Py_ssize_t wake_from;
    (void)module;
    if (!PyArg_ParseTuple(args, "iw*ni", &fd, &buffer, &wake_from, &patience_ms))
        return NULL;
    uint8_t *at = buffer.buf, *const end = at + buffer.len;
    int low = 1; /* the present value of SO_RCVLOWAT */
    PyThreadState *thread = PyEval_SaveThread();
    while (at < end) {
        const ssize_t size = recv(fd, at, (size_t)(end - at), MSG_DONTWAIT);
        if (size > 0) {
            at += size;
            continue;
        }
        if (size == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
            break;
        const int missing = end - at < wake_from ? (int)(end - at) : (int)wake_from;
        if (missing != low && setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &missing, sizeof missing) == 0)
            low = missing;
        struct pollfd one = {.fd = fd, .events = POLLIN};
        const int ready = poll(&one, 1, patience_ms);
        if (ready == 0 || (ready < 0 && errno != EINTR))
            break;
    }
    if (low != 1) {
        low = 1;
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low);
    }
    PyEval_RestoreThread(thread);
    const Py_ssize_t received = at - (uint8_t *)buffer.buf;
    PyBuffer_Release(&buffer);
    return PyLong_FromSsize_t(received);
}
#endif
